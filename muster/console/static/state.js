// A group as the page knows it: frames and deltas (muster/console/frames.py) applied to it.
"use strict";

(() => {
  const KEPT = 0, RESTORING = 1, READY = 2, LEAVING = 3;
  const ACTIVE = 1, STANDBY = 2, LEARNER = 3;
  Object.assign(muster, { KEPT, RESTORING, READY, LEAVING, ACTIVE, STANDBY, LEARNER });

  const natural = new Intl.Collator("en", { numeric: true });

  class GroupState {
    constructor() {
      this.clear();
    }

    clear() {
      this.head = {};
      this.members = new Map(); // slot → member
      this.holder = new Int32Array(0);
      this.target = new Int32Array(0);
      this.destination = new Int32Array(0);
      this.revoking = new Uint8Array(0);
      this.copies = new Map(); // "task:slot" → {task, slot, role, state, lag, fill}
      this.units = [];
    }

    /** Apply a frame or a delta. */
    apply(change) {
      if (change.whole) this.clear();
      if (change.head) {
        Object.assign(this.head, change.head);
        if (change.head.units) this._size(change.head.units);
      }
      for (const [slot, row] of Object.entries(change.members ?? {})) {
        if (row === null) this.members.delete(Number(slot));
        else this.members.set(Number(slot), member(Number(slot), row));
      }
      for (const [task, holder, target, destination, revoking] of change.tasks ?? []) {
        this.holder[task] = holder;
        this.target[task] = target;
        this.destination[task] = destination;
        this.revoking[task] = revoking;
      }
      for (const [key, row] of Object.entries(change.copies ?? {})) {
        if (row === null) {
          this.copies.delete(key);
          continue;
        }
        const [task, slot] = key.split(":").map(Number);
        const [role, state, lag, fill] = row;
        this.copies.set(key, { task, slot, role, state, lag, fill });
      }
      return this;
    }

    _size(units) {
      let start = 0;
      this.units = units.map(([name, tasks, isConnector, weight, stateful, ownWeight]) => {
        const size = isConnector ? tasks + 1 : tasks;
        const unit = { name, start, size, isConnector, weight, stateful, ownWeight };
        start += size;
        return unit;
      });
      for (const field of ["holder", "target", "destination"]) {
        this[field] = new Int32Array(start).fill(-1);
      }
      this.revoking = new Uint8Array(start);
      this.weightMax = Math.max(0, ...this.units.map((u) => Math.max(u.weight, u.ownWeight)));
    }

    get size() {
      return this.holder.length;
    }

    unitOf(task) {
      let low = 0, high = this.units.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.units[middle].start <= task) low = middle;
        else high = middle - 1;
      }
      return this.units[low];
    }

    /** A task's id, as Kafka prints it. */
    name(task) {
      const unit = this.unitOf(task);
      if (!unit) return "";
      const number = task - unit.start;
      if (!unit.isConnector) return `${unit.name}_${number}`;
      return number === 0 ? unit.name : `${unit.name}-${number - 1}`;
    }

    /** The task with this id; -1 = there is none. */
    find(name) {
      for (const unit of this.units) {
        if (unit.isConnector && unit.name === name) return unit.start;
        const separator = unit.isConnector ? "-" : "_";
        if (!name.startsWith(unit.name + separator)) continue;
        const number = Number(name.slice(unit.name.length + 1));
        const place = unit.isConnector ? number + 1 : number;
        if (Number.isInteger(number) && place >= 0 && place < unit.size) return unit.start + place;
      }
      return -1;
    }

    weight(task) {
      const unit = this.unitOf(task);
      return unit.isConnector && task === unit.start ? unit.ownWeight : unit.weight;
    }

    /** The member with this id; undefined = there is none. */
    member(id) {
      return [...this.members.values()].find((each) => each.id === id);
    }

    /** A member's id; for no member, so. */
    who(slot) {
      return this.members.get(slot)?.id ?? "no member";
    }

    /** Members by rack, then by name. */
    sorted() {
      return [...this.members.values()].sort(
        (a, b) => natural.compare(a.rack, b.rack) || natural.compare(a.id, b.id));
    }

    /** What each member has: slot → {actives, coming, copies, load}; -1 = tasks without an owner. */
    holdings() {
      const held = new Map([[-1, holding()]]);
      for (const slot of this.members.keys()) held.set(slot, holding());
      for (let task = 0; task < this.size; task++) {
        const owner = held.get(this.holder[task]) ?? held.get(-1);
        owner.actives.push(task);
        owner.load += this.weight(task);
        if (this.target[task] !== this.holder[task] && this.target[task] >= 0) {
          held.get(this.target[task])?.coming.push(task);
        }
      }
      for (const copy of this.copies.values()) held.get(copy.slot)?.copies.push(copy);
      for (const each of held.values()) {
        each.copies.sort((a, b) => b.role - a.role || a.task - b.task);
      }
      return held;
    }

    /** A cell in words, for the tooltip and the screen reader. */
    describe(cell) {
      if (cell.kind === "member") return this.describeMember(cell.slot);
      const name = this.name(cell.task);
      const weight = this.weight(cell.task);
      const heavy = weight === 1 ? "" : `, weight ${muster.figure(weight)}`;
      if (cell.kind === "coming") return `${name} is on its way to ${this.who(cell.slot)}${heavy}`;
      if (cell.kind === "copy") {
        const { role, state, lag, fill } = cell.copy;
        const words = ["kept", "restoring", "ready", "leaving"][state];
        const behind = lag === null ? "" : `, ${muster.count(lag, "offset")} behind`;
        const part = fill === null || fill === undefined ? "" : `, ${Math.round(fill * 100)} %`;
        const kind = role === LEARNER ? "learner" : "standby";
        return `${name}, ${kind} on ${this.who(cell.slot)}, ${words}${behind}${part}`;
      }
      if (this.holder[cell.task] < 0) return `${name} has no owner${heavy}`;
      const asked = this.revoking[cell.task] ? ", asked to stop" : "";
      return `${name}, active on ${this.who(this.holder[cell.task])}${asked}${heavy}`;
    }

    describeMember(slot) {
      if (slot < 0) return "tasks without an owner";
      const each = this.members.get(slot);
      if (!each) return "";
      let actives = 0;
      for (let task = 0; task < this.size; task++) actives += this.holder[task] === slot;
      const words = [`member ${each.id}`, muster.count(actives, "active task")];
      if (each.rack) words.push(`rack ${each.rack}`);
      if (each.capacity !== 1) words.push(`capacity ${each.capacity}`);
      words.push(...muster.memberWords(each));
      return words.join(", ");
    }
  }

  const holding = () => ({ actives: [], coming: [], copies: [], load: 0 });

  const member = (slot, row) => {
    const [id, rack, capacity, state, draining, away, instance, epoch, joinedMs] = row;
    return { slot, id, rack, capacity, state, draining, away, instance, epoch, joinedMs };
  };

  /** What is special about a member, in words. */
  muster.memberWords = (each) => {
    const words = [];
    if (each.state === "new") words.push("would join");
    if (each.draining) words.push("draining");
    if (each.away) words.push("away");
    if (each.state === "unrevoked") words.push("asked to stop");
    if (each.state === "unreleased") words.push("waits for others");
    return words;
  };

  muster.GroupState = GroupState;
})();
