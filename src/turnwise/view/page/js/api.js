// Requests to the server. Answers are cached until a run changes; view/server.py lists the addresses.

const answers = new Map();
const MOST_KEPT = 60;

async function request(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("The server does not respond. Is `turnwise view` still running?");
  }
  const data = await response.json().catch(() => null);
  if (!response.ok || data === null)
    throw new Error(data?.error ?? `The server returned ${response.status} for ${address}.`);
  return data;
}

export async function get(path, params = null, { fresh = false } = {}) {
  const given = Object.entries(params ?? {}).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const query = new URLSearchParams(given).toString();
  const address = `/api${path}${query && `?${query}`}`;
  if (!fresh && answers.has(address)) return answers.get(address);
  const data = await request(address);
  answers.set(address, data);
  if (answers.size > MOST_KEPT) answers.delete(answers.keys().next().value);
  return data;
}

// Saves a user's notes on a run, the only thing that the page ever writes. The token shows that the
// viewer served this page; see view/security.py.
export async function saveNotes(run, changes, token) {
  const data = await request(`/api${runPath(run, "notes")}`, {
    method: "PATCH",
    headers: { "content-type": "application/json", "x-turnwise-token": token ?? "" },
    body: JSON.stringify(changes),
  });
  forget(run);
  return data;
}

// Drops the cached answers about a run that changed. A written episode does not change, unless the
// run was resumed from an earlier step or started again.
export function forget(run) {
  const start = `/api/runs/${encodeURIComponent(run)}`;
  for (const address of answers.keys())
    if (address === "/api/runs" || address.startsWith(start)) answers.delete(address);
}

export function runPath(run, ...rest) {
  return ["/runs", ...[run, ...rest].map(encodeURIComponent)].join("/");
}

// Returns the address of a whole run as a file, or of one of its episodes.
export function exportAddress(...names) {
  return `/export/${names.map(encodeURIComponent).join("/")}.html`;
}

// Calls `changed(runs)` whenever runs changed, and `state("open" | "lost")` for the connection,
// which the browser opens again by itself.
export function listen({ changed, state }) {
  const source = new EventSource("/api/events");
  source.addEventListener("open", () => state("open"));
  source.addEventListener("error", () => state("lost"));
  source.addEventListener("runs", (event) => {
    changed(JSON.parse(event.data).runs);
  });
}
