"""The only code that knows AMD's kernel driver (`amdgpu` and its compute side, KFD), behind the driver interface.

All values come from files under `/sys`, documented in the kernel's `Documentation/gpu/amdgpu`. No library of
AMD's is needed, and no file is held open, so the driver can be unloaded at any time.
"""
