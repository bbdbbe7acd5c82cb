// The service worker: page files from the host, or from the cache when the host cannot be reached.

const PAGE_CACHE = "pair-site-page";
const FILES = [
  "./", "index.html", "style.css", "icon.svg", "app.webmanifest", "main.js", "answer.js", "blake2b.js", "bytes.js",
  "embedder.js", "keywords.js", "passages.js", "ranking.js", "signature.js", "site.js", "source.js", "spelling.js",
  "stemmer.js", "texts.js", "tokenizer.js", "vectors.js", "view.js", "vocabulary.js", "documents.html",
];

self.addEventListener("install", (event) => {
  const fill = async () => {
    const cache = await caches.open(PAGE_CACHE);
    const manifest = await fetch("site.json", { cache: "no-cache" });
    await cache.put("site.json", manifest.clone());
    const isSigned = Boolean((await manifest.json()).key);
    await cache.addAll(isSigned ? [...FILES, "site.json.minisig"] : FILES);
  };
  event.waitUntil(fill().then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

async function answer(request) {
  const cache = await caches.open(PAGE_CACHE);
  try {
    const response = await fetch(request);
    if (response.ok && response.status === 200) await cache.put(request.url.split(/[?#]/)[0], response.clone());
    return response;
  } catch (fault) {
    const copy = await cache.match(request.url, { ignoreSearch: true });
    if (copy) return copy;
    throw fault;
  }
}

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const path = new URL(request.url).pathname.slice(new URL("./", self.location).pathname.length);
  // The page itself keeps the data files, by their hashes.
  if (request.method !== "GET" || path.startsWith("data/") || !request.url.startsWith(new URL("./", self.location).href)) return;
  event.respondWith(answer(request));
});
