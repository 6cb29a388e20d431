// Requests as they end, and one of them as a strip of its tokens: what was reused, from where, and
// why the controller chose so.
import {get} from "./api.js";
import {age, bars, bytes, clock, count, h, key, ms, note, part, percent, refill, shares, table} from "./dom.js";
import {state} from "./feed.js";
import {drawHeat, heatOf, marks} from "./heat.js";

export const title = "Requests";
const SHOWN = 200;
const MODES = ["full", "prefix", "reuse", "blend"];

export const modeName = (strategy) => MODES.includes(strategy) ? strategy : "blend";

export function modeOf(r) {
    const s = r.decision?.strategy;
    if (!s) return r.line?.status >= 400 ? "refused" : "relayed";
    return modeName(s);
}

// Wall clock, s: as it ended, or of its decision as long as it runs.
export const startedAt = (r) => r.line ? Date.parse(r.line.ts) / 1000 : r.decision.t;
const ttft = (r) => r.line?.ttft_ms ?? r.decision?.ttft_ms;
const tokens = (r) => {
    const t = r.decision?.tokens;
    return t ? t.prefix + t.reused + t.recomputed + t.computed : r.line?.prompt_tokens;
};
export const kinds = (t) => [["prefix", t.prefix, "prefix"], ["reused", t.reused, "reused"],
                             ["recomputed", t.recomputed, "recomputed"], ["computed", t.computed, "computed"]];

function ofTokens(r) {
    if (r.decision?.tokens) return shares(kinds(r.decision.tokens), "thin");
    const l = r.line;
    if (!l?.prompt_tokens || l.cached_tokens === undefined) return "–";
    return shares([["reused", l.cached_tokens, "cached"], ["computed", l.prompt_tokens - l.cached_tokens, "computed"]],
                  "thin");
}

function drawMode(r) {
    const l = r.line;
    if (l?.status >= 400) return h("span", {class: "tag bad"}, l.end === "ok" ? l.status : `${l.status} ${l.end}`);
    return h("span", {class: r.decision ? "tag reuse" : "tag"}, modeOf(r));
}

const columns = [
    {name: "Time", cell: (r) => h("a", {href: `#requests/${encodeURIComponent(r.id)}`, "data-key": r.id,
                                        "aria-label": `Request ${r.id}`}, clock(startedAt(r) * 1000))},
    {name: "Mode", cell: drawMode},
    {name: "Model", cut: true, text: (r) => r.line?.model, cell: (r) => r.line?.model ?? "–"},
    {name: "Key", cut: true, wide: true, text: (r) => r.line?.key_id, cell: (r) => r.line?.key_id ?? "–"},
    {name: "Prompt", number: true, cell: (r) => count(tokens(r))},
    {name: "How its tokens came", cell: ofTokens},
    {name: "First token", number: true, cell: (r) => ms(ttft(r))},
    {name: "Full, predicted", number: true, wide: true, cell: (r) => ms(r.decision?.full_ms || undefined)},
    {name: "Tokens out", number: true, wide: true, cell: (r) => count(r.line?.completion_tokens)},
    {name: "Whole", number: true, wide: true, cell: (r) => ms(r.line?.dur_ms)},
];

function passes(r, f) {
    const l = r.line || {};
    if (f.mode && modeOf(r) !== f.mode) return false;
    if (f.slow > 0 && !(ttft(r) >= f.slow)) return false;
    const words = [r.id, l.model, l.key_id, l.target, l.path, l.client].join("\n").toLowerCase();
    return words.includes(f.text.toLowerCase());
}

// ---- the list ----

function openList(main) {
    const f = {text: "", mode: "", slow: 0, seen: -1};
    const list = h("div", {class: "panel"});
    let frozen = null;
    const update = () => {
        if (f.seen === state.changes) return;
        f.seen = state.changes;
        const all = frozen || [...state.requests.values()].filter((r) => r.line || r.decision?.ttft_ms > 0);
        const rows = all.filter((r) => passes(r, f)).sort((a, b) => startedAt(b) - startedAt(a)).slice(0, SHOWN);
        const of = rows.length === all.length ? "" : ` of ${all.length}`;
        refill(list, table(columns, rows, {caption: `${rows.length}${of} requests`}),
               key(kinds({}).map(([kind, , name]) => [kind, name])), all.length === 0 && note("None has ended yet."));
    };
    const change = (set) => (e) => {
        set(e.target);
        f.seen = -1;
        update();
    };
    main.append(
        h("div", {class: "bar", role: "search"},
          h("label", {}, "Find", h("input", {type: "search", placeholder: "model, key, id, target",
                                             oninput: change((t) => f.text = t.value)})),
          h("label", {}, "Mode", h("select", {onchange: change((t) => f.mode = t.value)},
                                   h("option", {value: ""}, "all"),
                                   [...MODES, "relayed", "refused"].map((m) => h("option", {}, m)))),
          h("label", {}, "First token at least, ms",
            h("input", {type: "number", min: "0", size: "6", oninput: change((t) => f.slow = Number(t.value))})),
          h("label", {}, h("input", {type: "checkbox", onchange: change((t) => {
              frozen = t.checked ? [...state.requests.values()] : null;
          })}), "Hold")),
        list);
    return {update};
}

// ---- one request ----

const KINDS = {ram: "from RAM", nvme: "from NVMe", redis: "from Redis", gpu: "from the GPU's memory",
               prefix: "exact prefix", recomputed: "of it recomputed",
               glue: "in between, computed", question: "question, computed"};

// The prompt from its first token to its last: [{class, n, name, chunk}].
export function strip(d) {
    const parts = [];
    let at = 0;
    const put = (to, kind, name, chunk) => {
        const n = to - at;
        if (n > 0) parts.push({kind, n, name, chunk, from: at});
        at = Math.max(at, to);
    };
    d.chunks.forEach((c, i) => {
        put(c.token_begin, "glue", i === 0 ? "before the chunks" : "between chunks");
        put(c.token_begin + c.tokens, c.source, c.source, c);
    });
    if (d.chunks.length) put(d.in.n_tok, "question", "question");
    else put(d.in.n_tok, "computed", "no chunks");
    const prefix = d.measured.tokens.prefix;
    for (const p of parts) // what an exact prefix covers is not computed, whatever it is part of
        if (!p.chunk && p.from + p.n <= prefix) Object.assign(p, {kind: "prefix", name: `${p.name} (prefix)`});
    return parts;
}

// What of a stored chunk was computed again: the tokens themselves where they are known, else their share of all chunks
// together as a band at the foot.
export function drawStrip(d, heat, choose) {
    const parts = strip(d), t = d.measured.tokens;
    const again = t.reused + t.recomputed > 0 ? 100 * t.recomputed / (t.reused + t.recomputed) : 0;
    const isReused = (p) => p.chunk && !["computed", "prefix"].includes(p.chunk.source);
    const box = h("div", {class: "strip", role: "group", "aria-label": "The prompt from its first token to its last"});
    for (const p of parts) {
        const text = `${p.name}, ${count(p.n)} tokens${p.chunk?.miss ? `, missed: ${p.chunk.miss}` : ""}`;
        const node = p.chunk ? h("button", {type: "button", "aria-pressed": "false", "aria-label": text, title: text,
                                            onclick: () => {
                                                for (const b of box.querySelectorAll("button"))
                                                    b.setAttribute("aria-pressed", String(b === node));
                                                choose(p.chunk);
                                            }},
                                 isReused(p) && (heat ? marks(heat, p.from, p.n) :
                                     h("span", {class: "c-recomputed", "height%": again})))
                             : h("span", {role: "img", "aria-label": text, title: text});
        node.classList.add(`c-${p.kind}`);
        node.style.flexGrow = p.n;
        box.append(node);
    }
    const name = (p) => p.n > 0.05 * d.in.n_tok && `${p.chunk?.source ?? p.name} ${count(p.n)}`;
    const names = parts.map((p) => h("span", {grow: p.n}, name(p)));
    return [box, h("div", {class: "strip-names", "aria-hidden": "true"}, names)];
}

export function stripKey(d) {
    const used = new Set(strip(d).map((p) => p.kind));
    if (d.measured.tokens.recomputed > 0) used.add("recomputed");
    return key([...used].map((k) => [k, KINDS[k] || k]));
}

const STEPS = {embed: "embeddings, layer 0", score: "which tokens matter", head: "logits"};
const stepName = (s) => !s.layers ? STEPS[s.name] ?? s.name :
    s.layers[0] < s.layers[1] ? `layers ${s.layers[0]}–${s.layers[1]}` : `layer ${s.layers[0]}`;

// Where the time until the first token went, in ms since the client's request came: rows of {name, from, to, kind}, of
// the prefill's steps with what of it they computed; a worker's times begin when it got the request.
export function waterfall(d, line) {
    const m = d.measured, before = d.before_s * 1000, queue = Math.max(0, Math.min(m.queue_s * 1000, before));
    const outside = Math.max(0, (line?.ttft_ms ?? 0) - m.ttft_s * 1000);
    const rows = [];
    const put = (name, from, to, kind, more) => {
        if (to - from > 0.005) rows.push({name, from: Math.max(0, outside + from), to: outside + to, kind, ...more});
    };
    put("gateway and its queue", -outside, 0, "wait");
    put("parse, tokenise, ask tiers", 0, before - queue, "question");
    put("queue of the engine", before - queue, before, "wait");
    if (m.ttft_s > 0 && m.steps.length > 0) {
        put("look up, decide", before, m.steps[0].begin_s * 1000, "question");
        for (const l of m.loads)
            put(`${l.tier}: ${count(l.records)} record${l.records === 1 ? "" : "s"}, ${bytes(l.bytes)}`,
                l.begin_s * 1000, l.end_s * 1000, l.tier);
        for (const s of m.steps)
            put(stepName(s), s.begin_s * 1000, s.end_s * 1000, s.name === "score" ? "recomputed" : "computed",
                {computed: s.compute_s * 1000});
        put("first token out", m.steps.at(-1).end_s * 1000, m.ttft_s * 1000, "question");
    }
    return {rows, total: outside + Math.max(0, m.ttft_s * 1000), started: outside + before};
}

// A step that waited, for stored KV or for other requests' turns, is pale as far as it did; where in it is not known.
function drawBar(r, end) {
    const left = 100 * r.from / end, width = 100 * (r.to - r.from) / end;
    if (r.kind === "outline") return h("span", {class: "outline", "left%": left, "width%": width});
    const part = r.computed === undefined ? 1 : Math.min(1, r.computed / (r.to - r.from));
    return [part < 0.95 && h("span", {class: "c-wait", "left%": left, "width%": width}),
            h("span", {class: `c-${r.kind}`, "left%": left + width * (1 - part), "width%": width * part})];
}

function drawWaterfall(d, line) {
    const {rows, total, started} = waterfall(d, line);
    const predicted = d.out.predicted.ttft_s * 1000, full = d.out.full.ttft_s * 1000;
    const more = [{name: "predicted prefill", to: predicted}, {name: "a full prefill, predicted", to: full}]
        .filter((r) => r.to > 0).map((r) => ({name: r.name, from: started, to: started + r.to, kind: "outline"}));
    const prefill = d.measured.prefill_s * 1000, of = (a, b) => `${a > b ? "+" : "−"}${percent(Math.abs(a - b) / b)}`;
    const text = d.measured.ttft_s > 0 && predicted > 0 &&
        `The prefill took ${ms(prefill)}: ${of(prefill, predicted)} against ${ms(predicted)} predicted` +
        `${full > 0 ? `, ${of(prefill, full)} against a full one's ${ms(full)}` : ""}.`;
    const end = Math.max(total, ...more.map((r) => r.to));
    return [text && h("p", {}, text), h("div", {class: "waterfall"}, [...rows, ...more].map((r) => [
        h("span", {}, r.name),
        h("div", {class: "track", "aria-hidden": "true"}, drawBar(r, end)),
        h("span", {class: "right"}, ms(r.to - r.from))])),
            rows.some((r) => r.computed < 0.95 * (r.to - r.from)) &&
                note("Pale: of a step, waiting for stored KV and others' turns. Stored KV comes beside the steps.")];
}

function why(d) {
    const chosen = d.out.strategy, list = d.alternatives || [];
    const most = Math.max(...list.map((a) => a.ttft_s), d.out.predicted.ttft_s || 0, 1e-9);
    return h("section", {class: "panel"}, h("h2", {}, "Why"),
             h("p", {}, `${d.by === "controller" ? "The controller" : "The rules"} chose `, h("b", {}, chosen),
               d.out.ratio > 0 && ` at a ratio of ${d.out.ratio.toPrecision(2)}`, `: ${d.out.reason}.`),
             list.length > 0 && note("What each strategy was predicted to take, at the least ratio that keeps the ",
                                     "quality wanted:"),
             list.length > 0 && bars(list.map((a) => [
                 a.strategy + (a.ratio > 0 ? ` ${a.ratio.toPrecision(2)}` : ""), a.ttft_s / most, ms(a.ttft_s * 1000),
                 a.strategy === chosen ? "gpu" : "glue"])));
}

function chunkTable(d) {
    return table([
        {name: "Chunk", cell: (c) => h("code", {}, c.id.slice(0, 12))},
        {name: "Source", cell: (c) => h("span", {class: "tag"}, c.source)},
        {name: "Tokens", number: true, cell: (c) => count(c.tokens)},
        {name: "Missed because", cell: (c) => c.miss ?? "–"},
        {name: "Found by", wide: true, cell: (c) => c.detector},
    ], d.chunks, {caption: `${d.chunks.length} chunks, in their order`});
}

async function record(box, chunk) {
    refill(box, h("h2", {}, "Chunk ", h("code", {}, chunk.id)), h("p", {class: "faint"}, "…"));
    try {
        const r = await get(`/admin/chunks/${chunk.id}`);
        refill(box, h("h2", {}, "Chunk ", h("code", {}, r.id)),
               h("p", {}, `${count(r.tokens)} tokens in ${bytes(r.bytes)}, now in ${r.tiers}; ${count(r.hits)} hits; ` +
                 `made ${age(r.age_s)} ago, used ${age(r.idle_s)} ago; encoded behind ${r.contexts} other contexts` +
                 `${r.namespace ? `; namespace ${r.namespace}` : ""}.`));
    } catch (e) {
        refill(box, h("h2", {}, "Chunk ", h("code", {}, chunk.id)), h("p", {class: "note"}, e.message));
    }
}

const UNSEEN = "Which tokens were recomputed is kept of the last requests that ran while this page was open.";

// Token by token; show(chunk): that chunk alone.
export function heatPanel(heat) {
    const box = h("section", {class: "panel", "aria-label": "Tokens"});
    const show = (chunk) => refill(box,
        h("div", {class: "bar"}, h("h2", {}, "Token by token"), h("span", {class: "grow"}),
          chunk && h("button", {type: "button", class: "small", "data-key": "whole", onclick: () => show()},
                     "The whole prompt")),
        heat ? drawHeat(heat, chunk?.token_begin, chunk?.tokens) : note(UNSEEN));
    show();
    return {box, show};
}

function drawOne(d, line, heat) {
    const box = h("section", {class: "panel", "aria-live": "polite"}, h("h2", {}, "Chunk"),
                  h("p", {class: "note"}, "Choose a chunk of the strip to see what is stored of it."));
    const tokens = heatPanel(heat);
    const t = d.measured.tokens;
    return [
        h("section", {class: "panel"}, h("h2", {}, d.prompt ? `Prompt ${d.prompt}` : "The prompt"),
          drawStrip(d, heat, (c) => {
              if (heat) tokens.show(c);
              record(box, c);
          }),
          stripKey(d),
          shares(kinds(t), "thick"),
          key(kinds(t).map(([kind, n, name]) => [kind, name, part(n, d.in.n_tok)]))),
        h("div", {class: "grid"},
          h("section", {class: "panel"}, h("h2", {}, "Until the first token"), drawWaterfall(d, line)), why(d)),
        t.reused + t.recomputed > 0 && tokens.box,
        d.chunks.length > 0 && h("div", {class: "grid"}, h("section", {class: "panel"}, chunkTable(d)), box),
    ];
}

function facts(l) {
    const rows = [["status", `${l.status} ${l.end}`], ["path", l.path], ["model", l.model], ["target", l.target],
                  ["key", l.key_id], ["client", l.client], ["prompt tokens", l.prompt_tokens && count(l.prompt_tokens)],
                  ["tokens out", l.completion_tokens && count(l.completion_tokens)], ["whole", ms(l.dur_ms)],
                  ["tries again", l.retries || null]].filter(([, v]) => v);
    return note(rows.map(([k, v], i) => [i > 0 && " · ", `${k} `, h("b", {}, v)]));
}

const UNDECIDED = "No worker decided on it, or too long ago: an upstream answered, or it was refused.";

function openOne(main, id) {
    const box = h("div", {class: "stack"});
    let list = null, heat = null, fault = null, drawn = null;
    // The worker tells of a request with its first token, the gateway when it has ended.
    const update = () => {
        const line = state.requests.get(id)?.line;
        if (drawn === (line ?? list)) return;
        drawn = line ?? list;
        refill(box, line && facts(line), list?.flatMap((d) => drawOne(d, line, heat.get(d.prompt))),
               fault && note(line && fault.status === 404 ? UNDECIDED : fault.message));
    };
    main.append(h("p", {}, h("a", {href: "#requests"}, "All requests"), " / ", h("code", {}, id)), box);
    Promise.all([get(`/admin/decisions/${encodeURIComponent(id)}`), heatOf(id)]).then(([r, tokens]) => {
        heat = tokens;
        list = r.data;
    }, (e) => fault = e).finally(() => {
        drawn = undefined;
        update();
    });
    return {update};
}

export function open(main, [id]) {
    return id ? openOne(main, id) : openList(main);
}
