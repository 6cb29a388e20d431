// Which tokens of a prompt were recomputed, and how each scored: what the worker keeps of the last requests while
// somebody looks. Text where the operator lets that of the request's namespace be shown, else a cell for each token.
import {get} from "./api.js";
import {count, h, key, note, svg} from "./dom.js";

const MAX = 126, NONE = 127, AGAIN = 128; // fus_prefill_heat()
const STEPS = 5;
const SHOWN = 4000; // tokens; each may be an element
const WIDE = 96;    // cells a row

// Of each prompt of a request {tokens, levels, text}, by its number; nothing where nothing is kept.
export async function heatOf(id) {
    try {
        const {prompts} = await get(`/admin/heat/${encodeURIComponent(id)}`);
        const levels = (hex) => Uint8Array.from(hex.match(/../g) || [], (x) => parseInt(x, 16));
        return new Map(prompts.map((p) => [p.prompt, {...p, levels: levels(p.heat)}]));
    } catch (e) {
        if (e.status === 404) return new Map();
        throw e;
    }
}

const isAgain = (level) => level >= AGAIN;
const isReused = (level) => level !== NONE;

function classOf(level) {
    if (!isReused(level)) return "";
    return `t${Math.floor((level % AGAIN) * STEPS / (MAX + 1))}${isAgain(level) ? " again" : ""}`;
}

// [[first, end, class], …] of neighbours that look the same.
function runs(levels, from, end) {
    const out = [];
    for (let i = from; i < end; i++) {
        const kind = classOf(levels[i]), last = out.at(-1);
        if (last && last[2] === kind) last[1] = i + 1;
        else out.push([i, i + 1, kind]);
    }
    return out;
}

// The recomputed tokens of [from, from + n) as one picture that is as wide as the chunk.
export function marks(heat, from, n) {
    const path = runs(heat.levels, from, from + n).filter(([i]) => isAgain(heat.levels[i]))
        .map(([i, end]) => `M${i - from} 0h${end - i}v1H${i - from}z`).join("");
    return svg("svg", {class: "marks", viewBox: `0 0 ${n} 1`, preserveAspectRatio: "none", "aria-hidden": "true"},
               svg("path", {class: "c-recomputed", d: path}));
}

function drawTexts({levels, text}, from, end) {
    const part = ([i, to, kind]) => {
        const words = text.slice(i, to).join("");
        if (!kind) return h("span", {class: "faint"}, words);
        return h(isAgain(levels[i]) ? "mark" : "span", {class: kind}, words);
    };
    return h("div", {class: "tokens", tabindex: "0", role: "region", "aria-label": "The prompt's tokens"}, runs(levels, from, end).map(part));
}

function drawCells({levels}, from, end, label) {
    const paths = new Map();
    for (const [i, to, kind] of runs(levels, from, end)) {
        let d = paths.get(kind) || "";
        for (let at = i; at < to;) { // a run that goes on in the next row
            const x = (at - from) % WIDE, y = Math.floor((at - from) / WIDE), n = Math.min(to - at, WIDE - x);
            for (let c = 0; c < n; c++) d += `M${x + c + 0.06} ${y + 0.06}h.88v.88h-.88z`;
            at += n;
        }
        paths.set(kind, d);
    }
    const rows = Math.ceil((end - from) / WIDE);
    return svg("svg", {class: "cells", viewBox: `0 0 ${WIDE} ${rows}`, role: "img", "aria-label": label},
               [...paths].map(([kind, d]) => svg("path", {class: kind || "c-glue", d})));
}

// The tokens of a prompt, or of [from, from + n) of it.
export function drawHeat(heat, from = 0, n = heat.levels.length) {
    const end = Math.min(from + n, from + SHOWN, heat.levels.length);
    const some = heat.levels.subarray(from, end);
    const reused = some.filter(isReused).length, again = some.filter(isAgain).length;
    const text = `Of ${count(reused)} tokens of stored chunks ${count(again)} were recomputed.`;
    return [
        h("p", {}, text, end < from + n && ` These are the first ${count(end - from)} of ${count(n)} tokens.`),
        heat.text ? drawTexts(heat, from, end) : drawCells(heat, from, end, text),
        key([["t0", "scored least"], ["t4", "scored most"], ["t4 again", "recomputed"]]),
        !heat.text && note("Their text is shown for namespaces that ", h("code", {}, "worker.show_text"), " names."),
    ];
}
