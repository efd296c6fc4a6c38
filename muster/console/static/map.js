// The ownership map: members as cards by rack, tasks as cells. Drawn on a canvas, and only when
// something changes; while tasks are on their way, their arrows move.
"use strict";

(() => {
  const { box, fit, head, short, stripes } = muster.pen;
  const GAP = 4, CARD_GAP = 10, PAD = 8, HEADER = 40, RACK = 26;
  const SIZES = [46, 38, 31, 25, 20, 16, 12, 9];
  const LABELS_FROM = 24;
  const CELLS_MAX = 5000; // above it the map aggregates
  const ARROWS_MAX = 400;
  const MOVE_MS = 420;
  const PIXELS_MAX = 16e6;
  const COLOURS = [
    "text", "muted", "card", "line", "active", "active-ink", "standby", "standby-soft", "learner",
    "learner-soft", "bad", "bad-soft", "accent", "good", "panel", "focus",
  ];

  class OwnershipMap {
    /** canvas; onPick({kind, task, slot}) is called for a cell or a member that is chosen. */
    constructor(canvas, tooltip, onPick) {
      this.canvas = canvas;
      this.tooltip = tooltip;
      this.onPick = onPick;
      this.state = null;
      this.cells = [];
      this.cards = [];
      this.racks = [];
      this.before = new Map(); // key → where a cell was drawn last
      this.movedAt = 0;
      this.chosen = null;
      this.focus = -1;
      this.hover = -1;
      this.frames = []; // how long drawing took, for measurements
      this.calm = matchMedia("(prefers-reduced-motion: reduce)");
      this._listen();
      this.readColours();
    }

    readColours() {
      const style = getComputedStyle(document.documentElement);
      this.colour = Object.fromEntries(
        COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
      this.font = style.getPropertyValue("--font").trim() || "sans-serif";
      this.draw();
    }

    /** Show a group. */
    show(state) {
      this.state = state;
      this.layout();
    }

    choose(chosen) {
      this.chosen = chosen;
      this.draw();
    }

    get aggregates() {
      return this.state.size + this.state.copies.size > CELLS_MAX || this.state.members.size > 400;
    }

    // -------------------------------------------------------------- where everything is

    layout() {
      if (!this.state) return;
      const width = Math.max(this.canvas.parentElement.clientWidth, 200);
      const held = this.state.holdings();
      const groups = this._racks(held);
      const height = Math.max(innerHeight - 430, 260);
      const isMany = this.aggregates;
      let placed = null;
      for (const size of SIZES) {
        placed = isMany ? this._tiles(groups, held, width) : this._cards(groups, held, width, size);
        if (isMany || placed.height <= height) break;
      }
      const old = new Map(this.cells.map((cell) => [cell.key, cell]));
      const now = performance.now();
      const hasMoved = !this.calm.matches && placed.cells.some((cell) => {
        const was = old.get(cell.key);
        return was && (was.x !== cell.x || was.y !== cell.y);
      });
      if (hasMoved) {
        this.before = new Map([...old].map(([key, cell]) => [key, this._now(cell, now)]));
        this.movedAt = now;
      }
      const kept = this.cells[this.focus]?.key;
      Object.assign(this, placed);
      this.focus = kept === undefined ? -1 : this.cells.findIndex((cell) => cell.key === kept);
      this.hover = -1;
      this._resize(width, placed.height);
      this.draw();
    }

    _racks(held) {
      const groups = new Map();
      for (const member of this.state.sorted()) {
        if (!groups.has(member.rack)) groups.set(member.rack, []);
        groups.get(member.rack).push(member);
      }
      const ownerless = held.get(-1);
      const list = [...groups].map(([rack, members]) => ({ rack, members }));
      if (ownerless.actives.length) list.unshift({ rack: null, members: [{ slot: -1, id: "no owner" }] });
      return list;
    }

    /** A card for every member, a cell for every task and copy; racks beside each other. */
    _cards(groups, held, width, size) {
      const step = size + GAP;
      let most = 1;
      for (const { members } of groups) {
        for (const { slot } of members) {
          if (slot >= 0) most = Math.max(most, count(held.get(slot)));
        }
      }
      const across = Math.max(Math.ceil(Math.sqrt(most)), Math.ceil((104 - 2 * PAD) / step));
      const least = Math.min(across * step - GAP + 2 * PAD, width);
      const fitting = Math.max(Math.floor((width + CARD_GAP) / (least + CARD_GAP)), 1);
      const columns = Math.min(fitting, Math.max(this.state.members.size, 1));
      const rows = bands(groups, columns);
      const used = Math.max(...rows.map((band) => sum(band.map((each) =>
        each.rack === null ? 1 : Math.min(each.members.length, columns)))));
      const roomy = (width + CARD_GAP) / used - CARD_GAP;
      const wide = Math.floor(Math.min(roomy, Math.max(least * 1.6, 150)));
      const made = { cells: [], cards: [], racks: [], size, held };
      let y = 0;
      for (const band of rows) {
        const isNamed = band.some(({ rack }) => rack);
        const isBare = band[0].rack === null;
        const cardWidth = isBare ? width : wide;
        if (isNamed) y += RACK;
        const perLine = Math.max(Math.floor((cardWidth - 2 * PAD + GAP) / step), 1);
        const deep = Math.max(...band.map(({ members }) => Math.ceil(members.length / columns)));
        for (let row = 0; row < deep; row++) {
          let column = 0, lines = 1;
          const placed = [];
          for (const { rack, members } of band) {
            if (rack && row === 0) {
              made.racks.push({ name: `rack ${rack}`, x: column * (cardWidth + CARD_GAP), y: y - 9 });
            }
            for (const { slot } of members.slice(row * columns, (row + 1) * columns)) {
              placed.push([slot, column * (cardWidth + CARD_GAP)]);
              lines = Math.max(lines, Math.ceil(count(held.get(slot)) / perLine));
              column += 1;
            }
          }
          const high = HEADER + lines * step + PAD - GAP;
          for (const [slot, x] of placed) {
            made.cards.push({ slot, x, y, w: cardWidth, h: high });
            this._fill(made.cells, held.get(slot), slot, x + PAD, y + HEADER, perLine, size);
          }
          y += high + CARD_GAP;
        }
      }
      return { ...made, height: Math.max(y - CARD_GAP, 60) };
    }

    _fill(cells, holding, slot, x, y, perLine, size) {
      const step = size + GAP;
      let place = 0;
      const put = (cell) => {
        const at = { x: x + (place % perLine) * step, y: y + Math.floor(place / perLine) * step };
        cells.push({ ...cell, ...at, size, slot });
        place += 1;
      };
      for (const task of holding.actives) put({ key: `a${task}`, kind: "active", task });
      for (const task of holding.coming) put({ key: `g${task}`, kind: "coming", task });
      for (const copy of holding.copies) {
        put({ key: `c${copy.task}:${slot}`, kind: "copy", task: copy.task, copy });
      }
    }

    /** A tile for every member, as full as its load. */
    _tiles(groups, held, width) {
      const members = this.state.members.size;
      const size = members > 1500 ? 15 : members > 600 ? 22 : 30;
      const step = size + 3;
      const perLine = Math.max(Math.floor((width + 3) / step), 1);
      const cells = [], racks = [];
      let y = 0;
      for (const { rack, members: inRack } of groups) {
        const title = rack === null
          ? `no owner · ${muster.count(held.get(inRack[0].slot).actives.length, "task")}`
          : rack ? `rack ${rack} · ${muster.count(inRack.length, "member")}` : null;
        if (title) racks.push({ name: title, x: 0, y: y + 13 });
        y += title ? RACK : 0;
        inRack.forEach(({ slot }, place) => {
          const at = { x: (place % perLine) * step, y: y + Math.floor(place / perLine) * step };
          cells.push({ key: `m${slot}`, kind: "member", slot, size, ...at });
        });
        y += Math.ceil(inRack.length / perLine) * step + CARD_GAP;
      }
      let most = 0;
      for (const [slot, member] of this.state.members) {
        most = Math.max(most, held.get(slot).load / member.capacity);
      }
      return { cells, cards: [], racks, size, height: Math.max(y, 60), held, most };
    }

    _resize(width, height) {
      const wanted = devicePixelRatio || 1;
      const ratio = width * height * wanted * wanted > PIXELS_MAX ? 1 : wanted;
      this.ratio = ratio;
      const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
      if (this.canvas.width !== w || this.canvas.height !== h) {
        this.canvas.width = w;
        this.canvas.height = h;
        this.canvas.style.width = `${width}px`;
        this.canvas.style.height = `${height}px`;
      }
    }

    // -------------------------------------------------------------- drawing

    /** Draw once, soon; as long as something moves, again and again. */
    draw() {
      if (this.asked || !this.state) return;
      this.asked = requestAnimationFrame((now) => {
        this.asked = 0;
        const begun = performance.now();
        this._paint(now);
        this.frames.push(performance.now() - begun);
        if (this.frames.length > 600) this.frames.shift();
        if (this._moves(now)) this.draw();
      });
    }

    _moves(now) {
      if (this.calm.matches || document.hidden) return false;
      return now - this.movedAt < MOVE_MS || (this.arrows > 0 && this.arrows <= ARROWS_MAX);
    }

    /** Where a cell is at this time. */
    _now(cell, now) {
      const was = this.before.get(cell.key);
      const part = (now - this.movedAt) / MOVE_MS;
      if (!was || part >= 1) return { x: cell.x, y: cell.y };
      const ease = 1 - (1 - Math.max(part, 0)) ** 3;
      return { x: was.x + (cell.x - was.x) * ease, y: was.y + (cell.y - was.y) * ease };
    }

    _paint(now) {
      const pen = this.canvas.getContext("2d");
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
      pen.textBaseline = "middle";
      pen.fillStyle = this.colour.muted;
      pen.font = `600 12px ${this.font}`;
      for (const { name, x, y } of this.racks) pen.fillText(short(name, 60), x + 2, y);
      for (const card of this.cards) this._card(pen, card);
      const places = new Map();
      for (const cell of this.cells) {
        const at = this._now(cell, now);
        if (cell.kind === "active" || cell.kind === "coming") places.set(cell.key, at);
        if (cell.kind === "member") this._tile(pen, cell);
        else this._cell(pen, cell, at);
      }
      this._arrows(pen, places, now);
      for (const [place, style] of [[this.hover, "text"], [this.focus, "focus"]]) {
        if (place >= 0 && this.cells[place]) {
          this._ring(pen, this._now(this.cells[place], now), this.cells[place].size, style);
        }
      }
    }

    _card(pen, { slot, x, y, w, h }) {
      const member = this.state.members.get(slot);
      const isBad = slot < 0;
      const isChosen = this.chosen?.kind === "member" && this.chosen.slot === slot;
      pen.fillStyle = isBad ? this.colour["bad-soft"] : this.colour.card;
      pen.strokeStyle = isChosen ? this.colour.accent : isBad ? this.colour.bad : this.colour.line;
      pen.lineWidth = isChosen ? 2 : 1;
      pen.setLineDash(member?.draining || member?.state === "new" ? [5, 4] : []);
      box(pen, x + 0.5, y + 0.5, w - 1, h - 1, 8);
      pen.fill();
      pen.stroke();
      pen.setLineDash([]);
      const words = member ? muster.memberWords(member) : [];
      pen.fillStyle = isBad ? this.colour.bad : this.colour.text;
      pen.font = `600 13px ${this.font}`;
      const times = member && member.capacity !== 1 ? ` ×${member.capacity}` : "";
      const name = (member?.id ?? "no owner") + times;
      pen.fillText(fit(pen, name, w - 2 * PAD, "ends"), x + PAD, y + 14);
      pen.font = `11px ${this.font}`;
      pen.fillStyle = words.length ? this.colour.accent : this.colour.muted;
      const { actives, load } = this.held.get(slot);
      const heavy = load === actives.length ? "" : ` · load ${muster.figure(load)}`;
      const plain = `${muster.count(actives.length, "task")}${heavy}`;
      pen.fillText(fit(pen, words.join(", ") || plain, w - 2 * PAD), x + PAD, y + 29);
    }

    _cell(pen, cell, { x, y }) {
      const { task, kind } = cell;
      const side = this._side(task, cell.size);
      const left = x + (cell.size - side) / 2, top = y + (cell.size - side) / 2;
      const radius = Math.min(5, side / 4);
      const isChosen = this.chosen?.kind !== "member" && this.chosen?.task === task;
      let ink = this.colour["active-ink"];
      pen.lineWidth = 1.5;
      if (kind === "coming") {
        pen.strokeStyle = this.colour.accent;
        pen.setLineDash([3, 3]);
        box(pen, left + 1, top + 1, side - 2, side - 2, radius);
        pen.stroke();
        pen.setLineDash([]);
        ink = this.colour.accent;
      } else if (kind === "copy") {
        ink = this._copy(pen, cell.copy, left, top, side, radius);
      } else if (this.state.holder[task] < 0) {
        pen.strokeStyle = pen.fillStyle = this.colour.bad;
        box(pen, left + 1, top + 1, side - 2, side - 2, radius);
        pen.stroke();
        stripes(pen, left + 1, top + 1, side - 2, 0.35);
        ink = this.colour.bad;
      } else {
        const isLeaving = this.state.revoking[task];
        pen.fillStyle = pen.strokeStyle = this.colour.active;
        box(pen, left, top, side, side, radius);
        pen.globalAlpha = isLeaving ? 0.18 : 1;
        pen.fill();
        pen.globalAlpha = 1;
        if (isLeaving) {
          stripes(pen, left, top, side, 0.3);
          box(pen, left + 1, top + 1, side - 2, side - 2, radius);
          pen.stroke();
          ink = this.colour.text;
        }
      }
      if (isChosen) this._ring(pen, { x: left, y: top }, side, "accent");
      if (side >= LABELS_FROM) this._label(pen, this.state.name(task), left, top, side, ink);
    }

    /** A standby is an outline; a learner fills from below as its lag falls. Returns the ink. */
    _copy(pen, { role, state, fill }, left, top, side, radius) {
      const isLearner = role === muster.LEARNER;
      const colour = this.colour[isLearner ? "learner" : "standby"];
      pen.strokeStyle = colour;
      pen.fillStyle = this.colour[isLearner ? "learner-soft" : "standby-soft"];
      box(pen, left + 1, top + 1, side - 2, side - 2, radius);
      pen.fill();
      if (isLearner) {
        const full = state === muster.READY ? 1 : fill ?? 0;
        pen.save();
        pen.clip();
        pen.fillStyle = colour;
        pen.globalAlpha = 0.75;
        pen.fillRect(left, top + side * (1 - full), side, side * full);
        pen.globalAlpha = 1;
        pen.restore();
        box(pen, left + 1, top + 1, side - 2, side - 2, radius);
      }
      if (state === muster.LEAVING) pen.setLineDash([2, 3]);
      pen.stroke();
      pen.setLineDash([]);
      return isLearner ? this.colour.text : colour;
    }

    _label(pen, name, left, top, side, ink) {
      pen.fillStyle = ink;
      for (const size of side >= 40 ? [12, 10, 9] : [10, 9]) {
        pen.font = `${size}px ${this.font}`;
        if (pen.measureText(name).width <= side - 3) break;
      }
      pen.textAlign = "center";
      pen.fillText(fit(pen, name, side - 3, "end"), left + side / 2, top + side / 2 + 0.5);
      pen.textAlign = "left";
    }

    _tile(pen, cell) {
      const { slot, size, x, y } = cell;
      const member = this.state.members.get(slot);
      const holding = this.held.get(slot);
      const full = member ? Math.min(holding.load / member.capacity / (this.most || 1), 1) : 1;
      pen.fillStyle = this.colour.card;
      box(pen, x, y, size, size, 4);
      pen.fill();
      pen.save();
      pen.clip();
      pen.fillStyle = member ? this.colour.active : this.colour.bad;
      pen.fillRect(x, y + size * (1 - full), size, size * full);
      const learners = holding.copies.filter((copy) => copy.role === muster.LEARNER).length;
      if (learners) {
        pen.fillStyle = this.colour.learner;
        pen.fillRect(x + size - 6, y, 6, 6);
      }
      pen.restore();
      const isOwing = member?.state === "unrevoked";
      pen.lineWidth = isOwing || holding.coming.length ? 2 : 1;
      pen.strokeStyle = isOwing ? this.colour.bad : holding.coming.length ? this.colour.accent : this.colour.line;
      box(pen, x + 0.5, y + 0.5, size - 1, size - 1, 4);
      pen.stroke();
      if (this.chosen?.kind === "member" && this.chosen.slot === slot) {
        this._ring(pen, { x, y }, size, "accent");
      }
    }

    /** From where a task runs to where it goes, or to the copy that it waits for. */
    _arrows(pen, places, now) {
      this.arrows = 0;
      if (this.aggregates) return;
      for (const cell of this.cells) {
        const isWaited = cell.kind === "copy" && this.state.destination[cell.task] === cell.slot
          && this.state.holder[cell.task] !== cell.slot && cell.copy.state !== muster.LEAVING;
        if (cell.kind !== "coming" && !isWaited) continue;
        const from = places.get(`a${cell.task}`);
        if (!from || this.state.holder[cell.task] < 0) continue;
        this.arrows += 1;
        if (this.arrows > ARROWS_MAX) return;
        const to = this._now(cell, now);
        this._arrow(pen, from, to, cell.size, isWaited ? "learner" : "accent", now);
      }
    }

    _arrow(pen, from, to, size, colour, now) {
      const half = size / 2;
      const [x1, y1, x2, y2] = [from.x + half, from.y + half, to.x + half, to.y + half];
      const far = Math.hypot(x2 - x1, y2 - y1) || 1;
      const [mx, my] = [(x1 + x2) / 2, (y1 + y2) / 2 - Math.min(60, far / 4)];
      const angle = Math.atan2(y2 - my, x2 - mx);
      const [ex, ey] = [x2 - Math.cos(angle) * half, y2 - Math.sin(angle) * half];
      pen.strokeStyle = pen.fillStyle = this.colour[colour];
      pen.lineWidth = 1.6;
      pen.setLineDash(colour === "accent" ? [6, 5] : [2, 4]);
      pen.lineDashOffset = this.calm.matches ? 0 : -now / 40;
      pen.beginPath();
      pen.moveTo(x1, y1);
      pen.quadraticCurveTo(mx, my, ex, ey);
      pen.stroke();
      pen.setLineDash([]);
      head(pen, angle, ex, ey);
    }

    _ring(pen, { x, y }, size, colour) {
      pen.strokeStyle = this.colour[colour];
      pen.lineWidth = 2.5;
      box(pen, x - 2, y - 2, size + 4, size + 4, 6);
      pen.stroke();
    }

    _side(task, size) {
      const most = this.state.weightMax;
      if (!most || size < 12) return size;
      return size * Math.max(Math.sqrt(this.state.weight(task) / most), 0.4);
    }

    // -------------------------------------------------------------- mouse and keyboard

    _listen() {
      const { canvas } = this;
      canvas.addEventListener("mousemove", (event) => this._point(event));
      canvas.addEventListener("mouseleave", () => this._unpoint());
      canvas.addEventListener("click", (event) => {
        const found = this._at(event.offsetX, event.offsetY);
        if (found) this.onPick(found);
      });
      canvas.addEventListener("keydown", (event) => this._key(event));
      canvas.addEventListener("focus", () => {
        if (this.focus < 0 && this.cells.length && canvas.matches(":focus-visible")) this._focus(0);
      });
      canvas.addEventListener("blur", () => {
        this.focus = -1;
        this.draw();
      });
      new ResizeObserver(() => this.layout()).observe(canvas.parentElement);
      document.addEventListener("visibilitychange", () => this.draw());
      document.addEventListener("muster-theme", () => this.readColours());
    }

    _place(x, y) {
      return this.cells.findIndex((cell) =>
        x >= cell.x - 2 && y >= cell.y - 2 && x <= cell.x + cell.size + 2 && y <= cell.y + cell.size + 2);
    }

    _at(x, y) {
      const place = this._place(x, y);
      if (place >= 0) return this.cells[place];
      const card = this.cards.find((c) => x >= c.x && y >= c.y && x <= c.x + c.w && y <= c.y + c.h);
      return card && card.slot >= 0 ? { kind: "member", slot: card.slot } : null;
    }

    _point(event) {
      const place = this._place(event.offsetX, event.offsetY);
      const found = place >= 0 ? this.cells[place] : this._at(event.offsetX, event.offsetY);
      this.canvas.style.cursor = found ? "pointer" : "default";
      if (place !== this.hover) {
        this.hover = place;
        this.draw();
      }
      if (!found) return this._unpoint();
      this.tooltip.textContent = this.state.describe(found);
      this.tooltip.hidden = false;
      const wide = this.canvas.clientWidth;
      const left = Math.min(event.offsetX + 14, Math.max(wide - this.tooltip.offsetWidth - 4, 0));
      this.tooltip.style.left = `${left}px`;
      this.tooltip.style.top = `${event.offsetY + 18}px`;
      return undefined;
    }

    _unpoint() {
      this.tooltip.hidden = true;
      if (this.hover >= 0) {
        this.hover = -1;
        this.draw();
      }
    }

    _key(event) {
      const { key } = event;
      const cell = this.cells[this.focus];
      if ((key === "Enter" || key === " ") && cell) {
        event.preventDefault();
        this.onPick(cell);
        return;
      }
      const direction = {
        ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1],
      }[key];
      let next = null;
      if (key === "Home") next = 0;
      else if (key === "End") next = this.cells.length - 1;
      else if (direction) next = cell ? this._towards(cell, direction) : 0;
      if (next === null || !this.cells.length) return;
      event.preventDefault();
      this._focus(next);
    }

    /** The nearest cell in a direction; the same one if there is none. */
    _towards(from, [dx, dy]) {
      let best = this.focus, least = Infinity;
      this.cells.forEach((cell, place) => {
        const [x, y] = [cell.x - from.x, cell.y - from.y];
        const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
        if (along <= 0.5) return;
        const far = along + aside * 3;
        if (far < least) [best, least] = [place, far];
      });
      return best;
    }

    _focus(place) {
      this.focus = place;
      const cell = this.cells[place];
      if (!cell) return;
      muster.say(this.state.describe(cell));
      const top = this.canvas.getBoundingClientRect().top + cell.y;
      if (top < 60 || top > innerHeight - 80) scrollBy({ top: top - innerHeight / 2 });
      this.draw();
    }
  }

  const count = (holding) =>
    holding.actives.length + holding.coming.length + holding.copies.length;

  /** Racks that fit beside each other, band by band; a rack of many members has bands of its own. */
  const bands = (groups, columns) => {
    const found = [];
    let used = Infinity;
    for (const group of groups) {
      const wanted = Math.min(group.members.length, columns);
      if (used + wanted > columns || group.rack === null || group.members.length > columns) {
        found.push([]);
        used = 0;
      }
      found.at(-1).push(group);
      used += group.rack === null || group.members.length > columns ? Infinity : wanted;
    }
    return found;
  };

  const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

  muster.OwnershipMap = OwnershipMap;
})();
