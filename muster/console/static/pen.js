// Shapes and texts on a canvas, as the map draws them.
"use strict";

(() => {
  const CHARS_MAX = 200;

  const box = (pen, x, y, w, h, r) => {
    pen.beginPath();
    pen.roundRect(x, y, Math.max(w, 0), Math.max(h, 0), r);
  };

  const stripes = (pen, x, y, side, alpha) => {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, side, side);
    pen.clip();
    pen.globalAlpha = alpha;
    pen.lineWidth = 2;
    pen.strokeStyle = pen.fillStyle;
    pen.beginPath();
    for (let at = -side; at < side; at += 6) {
      pen.moveTo(x + at, y + side);
      pen.lineTo(x + at + side, y);
    }
    pen.stroke();
    pen.restore();
  };

  const head = (pen, angle, x, y) => {
    pen.beginPath();
    pen.moveTo(x, y);
    for (const turn of [-0.45, 0.45]) {
      pen.lineTo(x - 9 * Math.cos(angle + turn), y - 9 * Math.sin(angle + turn));
    }
    pen.closePath();
    pen.fill();
  };

  const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  /** The text as far as it fits: its "start", its "end", or its "ends". */
  const fit = (pen, text, width, keeps = "start") => {
    if (text.length <= CHARS_MAX && pen.measureText(text).width <= width) return text;
    for (let most = Math.min(text.length - 1, CHARS_MAX); most > 1; most--) {
      const left = { start: most, end: 0, ends: Math.ceil(most / 2) }[keeps];
      const shown = `${text.slice(0, left)}…${text.slice(text.length - most + left)}`;
      if (pen.measureText(shown).width <= width) return shown;
    }
    return keeps === "end" ? `…${text.slice(-1)}` : `${text.slice(0, 1)}…`;
  };

  muster.pen = { box, fit, head, short, stripes };
})();
