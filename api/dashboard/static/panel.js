// One plan's schedule: rows of bars, and how to find them again.

const NAMES = {
  F: "forward",
  B: "backward",
  I: "backward, input part",
  W: "backward, weight part",
  REDUCE: "gradient reduction",
  APPLY: "optimizer update",
  RECV_F: "waits for an activation",
  RECV_B: "waits for a gradient",
};
const ACTS = { F: "forward", B: "backward", I: "backward", W: "weight", REDUCE: "reduce", APPLY: "apply", RECV_F: "wait", RECV_B: "wait" };
export const PASSES = new Set(["F", "B", "I", "W"]);

export class Panel {
  constructor(data, kinds) {
    this.title = data.title;
    this.endSeconds = data.end_seconds;
    this.rows = data.rows.map((row) => ({
      worker: row.worker,
      group: row.group,
      isLost: row.is_lost,
      isLeaving: row.is_leaving,
      bars: row.bars.map((bar) => barOf(bar, kinds)).sort((a, b) => a.start - b.start),
    }));
    this.passes = new Map();
    this.rows.forEach((row, index) => {
      for (const bar of row.bars) if (PASSES.has(bar.kind)) this.passes.set(nameOf(bar.kind, bar.microbatch, bar.stage), { row: index, bar });
    });
  }

  // The bar of a row at a time; passes before what runs beside them.
  at(row, time) {
    const bars = this.rows[row]?.bars ?? [];
    const hits = bars.filter((bar) => bar.start <= time && time <= bar.end);
    return hits.find((bar) => PASSES.has(bar.kind)) ?? hits[0] ?? null;
  }

  // The pass nearest to a time in a row, or in the next row in a direction that has any.
  nearest(row, time, direction = 0) {
    for (let index = row; index >= 0 && index < this.rows.length; index += direction || this.rows.length) {
      const bars = this.rows[index].bars;
      if (!bars.length) continue;
      const distance = (bar) => Math.abs((bar.start + bar.end) / 2 - time);
      return { row: index, bar: bars.reduce((best, each) => (distance(each) < distance(best) ? each : best)) };
    }
    return null;
  }

  beside(row, bar, direction) {
    const bars = this.rows[row].bars;
    const next = bars[bars.indexOf(bar) + direction];
    return next ? { row, bar: next } : null;
  }

  // Where a pass's result goes, if to another worker: from its end to the pass that takes it.
  messageOf(row, bar) {
    const next = bar.kind === "F" ? bar.stage + 1 : bar.stage - 1;
    const taker = bar.kind === "W" ? null : this.passes.get(nameOf(bar.kind, bar.microbatch, next));
    return taker && taker.row !== row ? { from: row, to: taker.row, sent: bar.end, taken: taker.bar.start } : null;
  }

  // The message that a pass sends and the one that it takes.
  messagesOf(row, bar) {
    if (!PASSES.has(bar.kind) || bar.kind === "W") return [];
    const giver = this.passes.get(nameOf(bar.kind, bar.microbatch, bar.kind === "F" ? bar.stage - 1 : bar.stage + 1));
    return [this.messageOf(row, bar), giver && this.messageOf(giver.row, giver.bar)].filter(Boolean);
  }

  describe(row, bar, format) {
    const about = [`${this.rows[row].worker}: ${NAMES[bar.kind]}`];
    if (bar.microbatch >= 0) about.push(`micro-batch ${bar.microbatch}`);
    if (bar.stage >= 0) about.push(`stage ${bar.stage}`);
    if (bar.isMended) about.push("for a lost worker");
    const length = bar.end - bar.start;
    return `${about.join(", ")}. ${format(bar.start, length)} to ${format(bar.end, length)}: ${format(length)}.`;
  }
}

const nameOf = (kind, microbatch, stage) => `${kind}${microbatch}/${stage}`;

function barOf([kind, microbatch, stage, start, end, foreign], kinds) {
  const name = kinds[kind];
  const isMended = Boolean(foreign) && PASSES.has(name);
  const act = isMended ? `mended-${name === "F" ? "forward" : "backward"}` : ACTS[name];
  return { kind: name, microbatch, stage, start, end, isMended, act, label: PASSES.has(name) ? `${name}${microbatch}` : name[0] };
}
