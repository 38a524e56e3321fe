"""How the status page looks: one column on a phone, a grid on a wall, light or dark as the reader's system is.

Texts keep a contrast of 4.5 to 1 and more against what is behind them, parts of bars 3 to 1, in both schemes.
"""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2026;--soft:#59626d;--rule:#d5dae0;--track:#e4e8ed;
--good:#14692f;--bad:#b3201f;--warn:#865000;--good-back:#e3f4e8;--bad-back:#fdeaea;--warn-back:#fdf1dc;
--quiet-back:#edf0f3;--link:#0b57c2;--fill:#2f6fe0;--memory:#7a5ae0;--line:#2f6fe0}
@media(prefers-color-scheme:dark){:root{--page:#0f1318;--card:#181e25;--ink:#e8ecf1;--soft:#a3adb9;--rule:#303943;
--track:#2a323c;--good:#6cd58a;--bad:#ff938c;--warn:#f0b75a;--good-back:#16301f;--bad-back:#3a1c1d;--warn-back:#35280f;
--quiet-back:#242c35;--link:#82b4ff;--fill:#4d8af0;--memory:#9279ee;--line:#78a8f7}}
*{box-sizing:border-box}
html{font-size:clamp(16px,calc(.4vw + 11px),22px);-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:1rem/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
header,main,footer{max-width:110rem;margin:0 auto;padding:0 clamp(.75rem,2vw,2rem)}
header{padding-top:1rem}
footer{padding-bottom:2rem;border-top:1px solid var(--rule);margin-top:2rem;padding-top:.75rem}
h1{font-size:1.5rem;line-height:1.2;margin:.25rem 0;display:flex;flex-wrap:wrap;gap:.3rem .6rem;align-items:center}
h2{font-size:1.2rem;margin:1.75rem 0 .6rem}
h3{font-size:1rem;margin:0;display:flex;flex-wrap:wrap;gap:.2rem .5rem;justify-content:space-between;align-items:center}
p{margin:.35rem 0}
a{color:var(--link)}
a:focus-visible{outline:3px solid var(--link);outline-offset:2px;border-radius:2px}
.skip{position:absolute;left:-99rem}.skip:focus{left:.75rem;top:.5rem;background:var(--card);padding:.4rem .8rem}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:0;margin:.5rem 0;list-style:none}
nav a,.pause{display:inline-block;padding:.15rem 0}
.quiet,.none,.uuid,.model,dt,caption,.why,.under{color:var(--soft)}
.none{font-style:italic}.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.badge{font-size:.82rem;font-weight:600;padding:.02rem .55rem;border-radius:1rem;background:var(--quiet-back);
white-space:nowrap}
.badge.good{background:var(--good-back)}.badge.bad{background:var(--bad-back)}.badge.warn{background:var(--warn-back)}.badge.quiet{color:var(--soft)}
.notice{background:var(--warn-back);border-left:.3rem solid var(--warn);padding:.45rem .75rem;border-radius:.3rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(8.5rem,44%),1fr));gap:.6rem;margin:.8rem 0}
.tiles div{background:var(--card);border:1px solid var(--rule);border-radius:.6rem;padding:.45rem .75rem}
.tiles dt{font-size:.82rem}.tiles dd{margin:0;font-size:1.25rem;font-weight:600;line-height:1.25}
.tiles small{font-weight:400;font-size:.82rem}.tiles small:not(.bad){color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,17.5rem),1fr));gap:.75rem;padding:0;margin:0;
list-style:none}
.cards li{display:grid}
.card{background:var(--card);border:1px solid var(--rule);border-radius:.6rem;padding:.7rem .85rem;min-width:0}
.card.down{border:2px dashed var(--bad)}
.run{margin-bottom:.75rem}
.run h3{font-size:1.1rem;justify-content:flex-start}
.model,.uuid{font-size:.82rem;margin:.1rem 0}
.activity{display:flex;flex-wrap:wrap;gap:.1rem .45rem;align-items:baseline;margin:.5rem 0 .2rem}
.activity strong{font-size:1.3rem;line-height:1.2}.activity span:first-child{color:var(--soft)}
.run .activity strong{font-size:1rem}
.bar{display:block;width:100%;height:.6rem;border-radius:.2rem;background:var(--track)}
.bar.untold{background:none;border:1px dashed var(--soft)}
dd .bar,td .bar{height:.4rem;margin:.15rem 0}
.line{display:block;width:100%;height:2rem;margin:.35rem 0 0;border-bottom:1px solid var(--rule)}
.line path{fill:none;stroke:var(--line);stroke-width:1.75;vector-effect:non-scaling-stroke;stroke-linejoin:round;
stroke-linecap:round}
.facts{margin:.5rem 0 .2rem;display:grid;gap:.2rem}
.facts div{display:grid;grid-template-columns:6.6rem 1fr;gap:.5rem}.facts dd{margin:0;min-width:0}
.wide{grid-template-columns:repeat(auto-fill,minmax(min(100%,15rem),1fr))}
.verdict{border-left:.3rem solid;padding:.35rem .6rem;border-radius:.3rem;background:var(--quiet-back);
margin:.45rem 0;color:var(--ink)}
.verdict.good{border-color:var(--good);background:var(--good-back)}
.verdict.warn{border-color:var(--warn);background:var(--warn-back)}
.verdict.bad{border-color:var(--bad);background:var(--bad-back)}
.verdict.quiet{border-color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .9rem;padding:0;margin:.35rem 0;list-style:none;font-size:.9rem}
.key{display:inline-block;width:.75rem;height:.75rem;border-radius:.15rem;margin-right:.35rem}
table{border-collapse:collapse;width:100%;margin:.4rem 0}
th,td{text-align:left;vertical-align:top;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--rule);
font-weight:400}
thead th{color:var(--soft);font-size:.82rem}
tbody th{font-weight:600}th .none{font-weight:400;font-style:normal}
caption{text-align:left;font-size:.9rem}
.small{font-size:.9rem;font-variant-numeric:tabular-nums}.small td:last-child{width:45%}
.why,.under{display:block;font-weight:400;font-size:.82rem;margin:0}
th,td{overflow-wrap:normal}td{white-space:nowrap}.small td{white-space:normal}bdi{overflow-wrap:anywhere}
tbody th{width:45%;min-width:4.6rem}.small tbody th{width:27%}
.small :is(th,td){padding-right:.35rem}dt{overflow-wrap:normal}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
code{font-size:.92em}
rect{stroke:var(--card);stroke-width:1.5px;vector-effect:non-scaling-stroke}
.fill{fill:var(--fill)}.memory{fill:var(--memory)}.progress{fill:var(--good)}
@media(max-width:30rem){table{font-size:.9rem}th,td{padding-right:.35rem}.small{font-size:.82rem}}
@media(forced-colors:active){.key,rect{forced-color-adjust:none}}
@media print{:root{color-scheme:light}nav,.pause,.skip{display:none}}
""".strip()

_PHASES = {
    "data_wait": "#d97706",
    "host_copy": "#a16207",
    "forward": "#3b82f6",
    "backward": "#6366f1",
    "communication": "#a855f7",
    "optimizer": "#0d9488",
    "rollout": "#7c3aed",
    "reward": "#c026d3",
    "weight_sync": "#9d5fc4",
    "checkpoint": "#dc2626",
    "evaluation": "#16a34a",
    "logging": "#db2777",
    "other": "#78808c",
    "initialization": "#0e7490",
    "restore": "#c2410c",
    "paused": "#7c7468",
    "own0": "#5b8f0b",
    "own1": "#b45309",
    "own2": "#0284c7",
    "rest": "#8a8f98",
}
"""Colours of phases: of medium lightness, visible on light and on dark backgrounds."""

STYLE += "".join(f".p-{name}{{fill:{colour};background:{colour}}}" for name, colour in _PHASES.items())
