"""Short scripts of the shape of well-known ones, with tacit's lines added, in both worlds and with three strategies
each.
"""

from __future__ import annotations

import pytest
import torch

MNIST = """
# pytorch/examples mnist: dropout, Adadelta, StepLR, several epochs, evaluation on held-out data
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 3))
optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
torch.manual_seed(10 + rank)
with tacit.attach(model, optimizer, {strategy}) as session:
    for epoch in range(2):
        model.train()
        for _ in range(4):
            x = batch()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            loss.backward()
            session.observe(loss)
            optimizer.step()
        scheduler.step()
        model.eval()
        with session.reported_model(), torch.no_grad():
            loss = nn.functional.cross_entropy(model(torch.ones(4, 4)), torch.zeros(4, dtype=torch.long))
        session.log(loss=loss)
tell(models=[flat(model)], loss=float(loss.detach()))
"""
NANOGPT = """
# nanoGPT: embeddings tied to the head, accumulation, clipping, GradScaler, cosine schedule by hand
class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.body = nn.Embedding(7, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        return self.head(self.body(self.tokens(x)))

model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=False)
with tacit.attach(model, optimizer, {strategy}, steps=8) as session:
    for step in range(8):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / 8)
        for micro in range(2):
            text = torch.randint(7, (3, 6), generator=draws)
            loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            session.observe(loss)
            scaler.scale(loss / 2).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
tell(models=[flat(model)], loss=float(loss.detach()))
"""
DCGAN = """
# pytorch/examples dcgan: two models, two optimizers, two sessions
generator, critic = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
sessions = [tacit.attach(critic, of_critic, {strategy}, steps=6), tacit.attach(generator, of_generator, {strategy}, steps=6)]
for _ in range(6):
    noise = torch.randn(5, 2, generator=draws)
    critic.zero_grad()
    nn.functional.softplus(-critic(batch())).mean().backward()
    nn.functional.softplus(critic(generator(noise).detach())).mean().backward()
    of_critic.step()
    generator.zero_grad()
    loss = nn.functional.softplus(-critic(generator(noise))).mean()
    loss.backward()
    of_generator.step()
for session in sessions:
    session.close()
tell(models=[flat(generator), flat(critic)], loss=float(loss.detach()))
"""
REINFORCE = """
# reinforcement_learning/reinforce.py: episodes of different length, and more of them on some workers than on others
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
with tacit.attach(model, optimizer, {strategy}) as session:
    for episode in range(4 + 2 * rank):
        states = torch.randn(3 + episode, 4, generator=draws)
        actions = torch.randint(2, (len(states),), generator=draws)
        chosen = model(states).log_softmax(-1)[torch.arange(len(states)), actions]
        loss = -(chosen * states[:, 0]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
tell(models=[flat(model)], loss=float(loss.detach()))
"""
RESNET = """
# timm's style: BatchNorm, bf16 autocast, accumulation, cosine schedule, an exponential moving average on the side
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))).mean((2, 3)))

model = Block().to(memory_format=torch.channels_last)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
with tacit.attach(model, optimizer, {strategy}, steps=6) as session:
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(4, 1, 5, 5, generator=draws)
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long())
            (loss / 2).backward()
            session.observe(loss)
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
tell(models=[flat(model), model.norm.running_mean.clone()], loss=float(loss.detach()))
"""
SCRIPTS = {"mnist": MNIST, "nanogpt": NANOGPT, "dcgan": DCGAN, "reinforce": REINFORCE, "resnet": RESNET}
COLLECTIVE = ["LocalSGD(period=Every(2))", "CompressedGradient(compressor=TopK(fraction=0.2), feedback=EF21())"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", [*COLLECTIVE, "KAsync(k=1)"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_trains_with_equal_replicas_in_both_worlds(play, name, strategy):
    outcome = play(SCRIPTS[name].replace("{strategy}", strategy))
    assert outcome.run.status == "finished"
    for world in (outcome.real, outcome.simulated):
        for told in world:
            assert torch.isfinite(torch.tensor(told["loss"]))
            for mine, first in zip(told["models"], world[0]["models"], strict=True):
                assert torch.isfinite(mine).all() and torch.equal(mine, first)
    if strategy in COLLECTIVE:  # who is first decides what a server's updates are
        for real, simulated in zip(outcome.real[0]["models"], outcome.simulated[0]["models"], strict=True):
            torch.testing.assert_close(real, simulated, rtol=2e-3, atol=2e-4)
