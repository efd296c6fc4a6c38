// The timeline: generations as bars over the records of the group, and a slider below them.
"use strict";

(() => {
  const HIGH = 64, EDGE = 8;

  class Timeline {
    /** onGo(number) is called when a person chooses a moment; null = live. */
    constructor({ canvas, slider, live, back, forward, onGo }) {
      Object.assign(this, { canvas, slider, live, onGo });
      this.moments = []; // [number, at_ms, generation]
      this.rounds = new Map(); // generation → round
      this.number = null;
      slider.addEventListener("input", () => this._slid());
      live.addEventListener("click", () => onGo(null));
      back.addEventListener("click", () => this.step(-1));
      forward.addEventListener("click", () => this.step(1));
      canvas.addEventListener("click", (event) => this._clicked(event));
      new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
      document.addEventListener("muster-theme", () => this.draw());
    }

    clear() {
      this.moments = [];
      this.rounds.clear();
    }

    /** Take in what a message says about moments and generations. */
    apply({ moments, rounds, oldest }) {
      if (moments) this.moments.push(...moments);
      if (oldest !== undefined) this.moments = this.moments.filter(([number]) => number >= oldest);
      for (const round of rounds ?? []) this.rounds.set(round.generation, round);
    }

    get last() {
      return this.moments.at(-1);
    }

    /** The place of a moment in `moments`; of the newest if it is not there. */
    place(number) {
      if (number === null || !this.moments.length) return this.moments.length - 1;
      const place = number - this.moments[0][0];
      return place >= 0 && place < this.moments.length ? place : this.moments.length - 1;
    }

    /** Show which moment the page shows; null = the newest, live. */
    show(number) {
      this.number = number;
      const most = Math.max(this.moments.length - 1, 0);
      const place = this.place(number);
      this.slider.max = String(most);
      this.slider.value = String(place);
      const moment = this.moments[place];
      const round = moment && this.rounds.get(moment[2]);
      const text = moment
        ? `generation ${moment[2]}, ${muster.when(moment[1])} UTC${round ? `, ${round.cause}` : ""}`
        : "no record";
      this.slider.setAttribute("aria-valuetext", text);
      this.live.setAttribute("aria-pressed", String(number === null));
      this.draw();
    }

    /** Go to the generation before or behind: to its newest moment. */
    step(by) {
      const here = this.moments[this.place(this.number)];
      if (!here) return;
      const known = [...new Set(this.moments.map(([, , generation]) => generation))];
      const next = known[known.indexOf(here[2]) + by];
      if (next === undefined) {
        if (by > 0) this.onGo(null);
        return;
      }
      this.goto(next);
    }

    /** Go to the newest moment of a generation. */
    goto(generation) {
      const found = this.moments.filter((moment) => moment[2] === generation).at(-1);
      if (found) this.onGo(found === this.last ? null : found[0]);
    }

    _slid() {
      const place = Number(this.slider.value);
      this.onGo(place >= this.moments.length - 1 ? null : this.moments[place][0]);
    }

    _clicked(event) {
      const wide = this.canvas.clientWidth - 2 * EDGE;
      const part = Math.min(Math.max((event.offsetX - EDGE) / wide, 0), 1);
      this.slider.value = String(Math.round(part * Math.max(this.moments.length - 1, 0)));
      this._slid();
    }

    draw() {
      const width = this.canvas.parentElement.clientWidth;
      const ratio = devicePixelRatio || 1;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(HIGH * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${HIGH}px`;
      const pen = this.canvas.getContext("2d");
      pen.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(`--${name}`).trim();
      const count = this.moments.length;
      if (!count) return;
      const wide = width - 2 * EDGE;
      const at = (place) => EDGE + (count > 1 ? (place / (count - 1)) * wide : wide);
      const first = this.moments[0][0];
      const most = Math.max(1, ...[...this.rounds.values()].map((round) => round.moves));
      const pitch = count > 1 ? wide / (count - 1) : wide;
      pen.fillStyle = colour("line");
      pen.fillRect(EDGE, HIGH - 5, wide, 1);
      for (const round of this.rounds.values()) {
        if (round.last < first) continue;
        const from = at(Math.max(round.first - first, 0)) - Math.min(pitch / 2, 6);
        const to = at(round.last - first) + Math.min(pitch / 2, 6);
        const high = round.moves ? 8 + Math.sqrt(round.moves / most) * (HIGH - 22) : 4;
        const left = Math.max(from, EDGE - 6), right = Math.min(to, width - EDGE + 6);
        pen.fillStyle = colour(`cause-${muster.causeKind(round.cause)}`);
        pen.beginPath();
        const gap = right - left > 4 ? 1 : 0;
        pen.roundRect(left + gap, HIGH - 6 - high, Math.max(right - left - 2 * gap, 1.5), high, 3);
        pen.fill();
      }
      const here = at(this.place(this.number));
      pen.fillStyle = colour(this.number === null ? "good" : "accent");
      pen.fillRect(here - 1, 0, 2, HIGH - 2);
    }
  }

  muster.Timeline = Timeline;
})();
