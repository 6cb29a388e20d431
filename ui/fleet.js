// What to change, workers and upstreams, who may ask, what the quality guard has seen. Read when it is opened and
// after each order: none of it changes by the second.
import {get, send} from "./api.js";
import {age, confirm, count, h, ms, note, panel, percent, refill, table} from "./dom.js";

export const title = "Fleet";

const STATES = {ready: "good", down: "bad", loading: "", draining: ""};

async function order(t, after) {
    const drains = t.state !== "draining";
    const name = drains ? "Drain" : "Enable";
    const follows = drains ? "It gets no new requests; those it has go on to their end." : "It gets requests again.";
    if (!await confirm(`${name} ${t.name}?`, follows, name)) return;
    try {
        await send("POST", `/admin/targets/${t.name}/${drains ? "drain" : "enable"}`);
        after(`${t.name}: ${drains ? "drains" : "enabled"}.`);
    } catch (e) {
        after(e.message);
    }
}

function button(t, after) {
    const name = t.state === "draining" ? "Enable" : "Drain";
    return h("button", {type: "button", class: "small", "data-key": `order-${t.name}`,
                        "aria-label": `${name} ${t.name}`, onclick: () => order(t, after)}, name);
}

const targetColumns = (after) => [
    {name: "Target", cut: true, text: (t) => t.address, cell: (t) => t.name},
    {name: "Kind", wide: true, cell: (t) => t.own ? "own worker" : t.kind},
    {name: "State", cell: (t) => h("span", {class: STATES[t.state]}, t.state)},
    {name: "Breaker", wide: true, cell: (t) => h("span", {class: t.breaker === "closed" ? "" : "bad"}, t.breaker)},
    {name: "In flight", number: true, cell: (t) => count(t.in_flight)},
    {name: "Answered", number: true, cell: (t) => count(t.ok)},
    {name: "Failed", number: true, cell: (t) => count(t.failed)},
    {name: "First byte", number: true, wide: true, cell: (t) => t.ttfb_ms > 0 ? ms(t.ttfb_ms) : "–"},
    {name: "Ready for", number: true, wide: true, cell: (t) => t.ready_s > 0 ? age(t.ready_s) : "–"},
    {name: "Last fault", cut: true, text: (t) => t.reason, cell: (t) => t.reason ?? "–"},
    {name: "Actions", hidden: true, cell: (t) => button(t, after)},
];

const limit = (left, all) => all ? `${count(left ?? all)} of ${count(all)}` : "no limit";
const keyColumns = [
    {name: "Key", cell: (k) => k.id || "–"},
    {name: "Namespace", cell: (k) => k.namespace ?? "–"},
    {name: "Running", number: true, cell: (k) => count(k.running)},
    {name: "Waiting", number: true, cell: (k) => count(k.waiting)},
    {name: "Requests left", number: true, cell: (k) => limit(k.requests_left, k.rpm)},
    {name: "Tokens left", number: true, cell: (k) => limit(k.tokens_left, k.tpm)},
    {name: "Weight", number: true, wide: true, cell: (k) => String(k.weight)},
];

const nats = (x) => Number.isFinite(x) ? x.toPrecision(3) : "–";

function drawGauge(now) {
    const share = now.kl / now.limit, text = `KL ${nats(now.kl)} of at most ${nats(now.limit)} nats`;
    return [h("div", {class: "meter", role: "img", "aria-label": text},
              h("span", {class: share > 1 ? "c-computed" : "c-reused", "width%": Math.min(100, 100 * share)})),
            h("p", {class: "faint"}, `${text} (plain reuse ${nats(now.reuse_kl)}); the best token is that of a full ` +
                `prefill in ${percent(now.agreement)}; ${count(now.shadows)} shadows.`)];
}

function drawGuard(w) {
    const q = w.quality;
    if (!q) return null;
    const mood = {normal: "good", off: "faint"}[q.state] || "bad";
    const sample = q.sample > 0 ? `one request in ${count(1 / q.sample)} is compared with a full prefill` :
        "none is compared with a full prefill";
    return h("section", {class: "panel"},
             h("div", {class: "bar"}, h("h2", {}, `Quality, worker ${w.index}`), h("span", {class: "grow"}),
               h("span", {class: mood}, q.state)),
             h("p", {}, "Requests that name nothing run ", h("b", {}, q.strategy ?? "–"),
               ` at ${nats(q.ratio)}; level ${q.level} of ${q.levels}; ${sample}.`),
             q.now ? drawGauge(q.now) : h("p", {class: "faint"}, "No shadow of this level yet."),
             h("p", {class: "faint"}, `${count(q.shadows?.done)} shadows done, ${count(q.shadows?.pending)} wait; ` +
                 `${count(q.alarms)} alarms.`));
}

// What the model's profile says each strategy loses, in shares of plain reuse's loss; null: it was not measured.
function drawProfile({source, profile: p}) {
    const known = (list) => list.some((x) => x !== null);
    const rows = Object.entries(p.losses || {}).filter(([, list]) => known(list));
    const columns = [{name: "Strategy", cell: ([name]) => name},
                     ...(p.ratios || []).map((r, i) => ({name: nats(r), number: true, cell: ([, list]) => {
                         const kept = list[i] !== null && list[i] <= p.loss;
                         return list[i] === null || list[i] === undefined ? "–" :
                             h("span", {class: kept ? "good" : null}, kept && "✓ ", list[i].toFixed(3));
                     }}))];
    return h("section", {class: "panel"},
             rows.length > 0 ? table(columns, rows, {caption: "Loss by the share that is recomputed"}) :
                 h("h2", {}, "Loss by the share that is recomputed"),
             note(`A loss of 1 is that of plain reuse; ✓ keeps the ${nats(p.loss)} wanted. Profile: ${source}.`));
}

function drawWorker(w) {
    const {model, compute, blend, tiers} = w.status || {};
    if (!model) return null;
    return panel(`Worker ${w.index}: ${model.id}`,
                 h("p", {}, `${model.arch}, ${model.layers} layers, ${count(model.max_model_len)} tokens of context; ` +
                     `${compute.device}, ${compute.threads} threads, ${compute.isa}.`),
                 blend?.enabled && h("p", {class: "faint"}, `Blends by ${blend.strategy}; its self-test passed.`),
                 blend && !blend.enabled && h("p", {class: "bad"}, `Blending is off: ${blend.reason}`),
                 tiers?.map((t) => t.reason && h("p", {class: "bad"}, `${t.tier} ${t.state}: ${t.reason}`)));
}

function drawFindings(d) {
    const of = (list, where) => (list || []).map((f) => ({...f, where}));
    const all = [...of(d.findings, "gateway"),
                 ...d.workers.flatMap((w) => of(w.doctor?.findings, `worker ${w.index}`))];
    const line = (f) => h("li", {}, f.what, " ", h("span", {class: "faint"}, `(${f.where})`), h("br"),
                          h("code", {}, f.fix));
    return panel("What to change", all.length === 0 ? note("Nothing that the doctor knows of.") :
        h("ol", {class: "findings"}, all.sort((a, b) => b.worth - a.worth).map(line)));
}

export function open(main) {
    const box = h("div", {class: "stack"}), said = h("p", {role: "status", class: "note"});

    async function load() {
        try {
            const [targets, status, quality, keys, doctor] = await Promise.all(
                ["targets", "status", "quality", "keys", "doctor"].map((x) => get(`/admin/${x}`)));
            const ready = status.workers.some((w) => w.state === "ready" && w.status?.blend);
            const profile = ready ? await get("/admin/profile") : null; // of one of them
            const backends = table(targetColumns(done), targets.targets, {caption: "Workers and upstreams"});
            refill(box, h("section", {class: "panel"}, backends), drawFindings(doctor),
                   h("div", {class: "grid"}, status.workers.map(drawWorker), quality.workers.map(drawGuard)),
                   profile && drawProfile(profile),
                   keys.keys.length > 0 &&
                       h("section", {class: "panel"}, table(keyColumns, keys.keys, {caption: "API keys"})));
        } catch (e) {
            refill(said, h("span", {class: "bad"}, e.message));
        }
    }

    function done(text) {
        refill(said, text);
        void load();
    }

    const again = h("button", {type: "button", onclick: () => done("")}, "Read again");
    main.append(h("div", {class: "bar"}, again), said, box);
    void load();
    return {};
}
