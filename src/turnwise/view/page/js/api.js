// What the server tells. Answers are kept while nothing changed; see view/server.py for the addresses.

const answers = new Map();
const MOST_KEPT = 60;

export class Refused extends Error {}

export async function get(path, params = null, { fresh = false, signal = null } = {}) {
  const query =
    params === null
      ? ""
      : new URLSearchParams(
          Object.entries(params).filter(([, v]) => v !== null && v !== undefined && v !== ""),
        ).toString();
  const address = `/api${path}${query && `?${query}`}`;
  if (!fresh && answers.has(address)) return answers.get(address);
  let response;
  try {
    response = await fetch(address, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is `turnwise view` still running?");
  }
  let data = null;
  try {
    data = await response.json();
  } catch {
    /* told below */
  }
  if (!response.ok || data === null) {
    throw new Refused(data?.error ?? `The server answered ${response.status} to ${address}.`);
  }
  keep(address, data);
  return data;
}

// The only thing that is ever written: a user's own notes on a run. The token says that this page
// was served by the viewer; see view/security.py.
export async function saveNotes(run, changes, token) {
  let response;
  try {
    response = await fetch(`/api${runPath(run, "notes")}`, {
      method: "PATCH",
      headers: { "content-type": "application/json", "x-turnwise-token": token ?? "" },
      body: JSON.stringify(changes),
    });
  } catch {
    throw new Refused("The server does not answer. Is `turnwise view` still running?");
  }
  const data = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(data?.error ?? `The server answered ${response.status}.`);
  forget(run);
  return data;
}

function keep(address, data) {
  answers.delete(address);
  answers.set(address, data);
  if (answers.size > MOST_KEPT) answers.delete(answers.keys().next().value);
}

// A run went on: what is known of it may be old. An episode that is written does not change,
// unless the run was resumed from an earlier step, or begun anew.
export function forget(run) {
  const start = `/api/runs/${encodeURIComponent(run)}`;
  for (const address of answers.keys()) {
    if (address.startsWith("/api/runs") && (address === "/api/runs" || address.startsWith(start))) {
      answers.delete(address);
    }
  }
}

export function runPath(run, ...rest) {
  return ["/runs", run, ...rest]
    .map((part, place) => (place ? encodeURIComponent(part) : part))
    .join("/");
}

export function runExportAddress(run) {
  return `/export/${encodeURIComponent(run)}.html`;
}

export function exportAddress(run, id) {
  return `/export/${encodeURIComponent(run)}/${encodeURIComponent(id)}.html`;
}

// `changed(runs)` whenever a run went on; `state("open" | "lost")`. The browser connects again itself.
export function listen({ changed, state }) {
  const source = new EventSource("/api/events");
  source.addEventListener("open", () => state("open"));
  source.addEventListener("error", () => state("lost"));
  source.addEventListener("runs", (event) => {
    state("open");
    changed(JSON.parse(event.data).runs);
  });
  addEventListener("pagehide", () => source.close());
}
