"""Distillation: the teacher's forward under no_grad is part of each step."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
teacher = slow.Net(hidden=32, forward=0.02)
teacher.eval()
student = slow.Net(hidden=4)
optimizer = slow.AdamW(student.parameters(), lr=1e-2)
for epoch in range(2):
    student.train()
    for inputs, labels in DataLoader(slow.Samples(10), batch_size=2, shuffle=True):
        truth.samples(len(inputs))
        optimizer.zero_grad()
        with torch.no_grad(), truth("forward"):
            teacher_logits = teacher(inputs)
        with truth("forward"):
            student_logits = student(inputs)
        soft = F.kl_div(F.log_softmax(student_logits / 2, -1), F.softmax(teacher_logits / 2, -1), reduction="batchmean")
        loss = 0.25 * soft * 4 + 0.75 * F.cross_entropy(student_logits, labels)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    print(epoch, f"{loss.item():.6f}")
truth.inspect(student, "student")
truth.inspect(teacher, "teacher")
