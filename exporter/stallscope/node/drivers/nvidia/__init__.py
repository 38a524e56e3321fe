"""The only code that knows NVML, behind a narrow driver interface."""
