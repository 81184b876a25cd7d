// Talks with the server: requests with clear errors, and its events.

export class ApiError extends Error {
  /** status 0: the server could not be reached. */
  constructor(status, message, body = {}) {
    super(message);
    this.status = status;
    this.body = body;
  }

  /** Whether the same request may succeed later: no connection, a new token, disk full, too many jobs, server error. */
  get passing() {
    return [0, 401, 429].includes(this.status) || this.status >= 500;
  }
}

async function send(method, path, { json, body, type, signal } = {}) {
  const headers = {};
  if (method !== "GET") headers["X-Cyctr"] = "1";
  if (json !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(json);
  } else if (type) {
    headers["Content-Type"] = type;
  }
  let response;
  try {
    response = await fetch(path, { method, headers, body, signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The studio's server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  let answer = {};
  try {
    answer = await response.json();
  } catch {
    // an error without our body comes from something between us and the server
  }
  if (response.status === 401) {
    throw new ApiError(401, "The studio was started again. Open the address that it printed; this window then goes on.");
  }
  throw new ApiError(response.status, answer.error ?? `The server answered ${response.status}.`, answer);
}

const parsed = async (response) => (response.status === 204 ? null : response.json());

export const getJson = async (path, options) => parsed(await send("GET", path, options));
export const post = async (path, json = {}, options) => parsed(await send("POST", path, { json, ...options }));
export const patch = async (path, json) => parsed(await send("PATCH", path, { json }));
export const remove = async (path, json) => parsed(await send("DELETE", path, json ? { json } : {}));
export const put = async (path, body, type) => parsed(await send("PUT", path, { body, type }));
export const raw = (path, options) => send("GET", path, options);

export const query = (values) => {
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return new URLSearchParams(kept).toString();
};

export const imageUrl = (photo, side) => `/api/photos/${photo.id}/image?side=${side}&v=${photo.version ?? 0}`;

/** Listens to the server's events; `handlers` has a function by event name, and `begun`, `lost` and `back` for the connection. */
export function listen(handlers, wasLost = false) {
  const source = new EventSource("/api/events");
  source.addEventListener("open", () => {
    if (wasLost) handlers.back?.();
    else handlers.begun?.();
    wasLost = false;
  });
  source.addEventListener("error", () => {
    if (!wasLost) handlers.lost?.();
    wasLost = true;
    // a browser gives up after an answer such as 401 or 500; a server that was restarted deserves another try
    if (source.readyState === EventSource.CLOSED) setTimeout(() => listen(handlers, true), 2000);
  });
  for (const name of ["preview", "previewed", "job", "photo", "project", "sam", "problem"]) {
    source.addEventListener(name, (event) => handlers[name]?.(JSON.parse(event.data)));
  }
}
