// News from the service, by one stream for all pages of a browser that look at the same thing. A browser opens six connections to
// a host, and a stream holds one for good; so pages say to each other who listens, those who nobody sees let go, and where enough
// streams are open a page does without. Channels work without TLS too, which locks do not.

const MOST_STREAMS = 3;
const BEAT_MILLISECONDS = 1000;
const SILENCE_MILLISECONDS = 3500;
const HELLO_MILLISECONDS = 150;
const OPENING_MILLISECONDS = 5000;
const REST_MILLISECONDS = 15000;
const KINDS = ["event", "report", "plan", "ending", "overlay"];

export class News {
  constructor(address, hear) {
    this.address = address;
    this.hear = hear;
    this.name = `${Math.random()}`;
    this.others = new Map();
    this.stream = null;
    this.restsUntil = 0;
    this.wasTold = false;
    this.channel = "BroadcastChannel" in window ? new BroadcastChannel("kintsugi-news") : null;
    this.channel?.addEventListener("message", ({ data }) => this.listen(data));
    for (const [target, kind] of [[document, "visibilitychange"], [window, "pagehide"], [window, "pageshow"]]) {
      target.addEventListener(kind, () => (document.hidden || kind === "pagehide" ? this.letGo() : this.begin()));
    }
    setInterval(() => this.tend(), BEAT_MILLISECONDS);
    this.begin();
  }

  // Whether news comes by itself: by the own stream, or by that of another page.
  get isTold() {
    return this.stream?.readyState === EventSource.OPEN || this.sharers().some((other) => other.isOpen);
  }

  // After something went wrong: without a stream for a while, whose connection others may need.
  rest() {
    this.restsUntil = performance.now() + REST_MILLISECONDS;
    this.letGo();
  }

  begin() {
    this.say("hello");
    setTimeout(() => this.tend(), this.channel ? HELLO_MILLISECONDS : 0);
  }

  tend() {
    const now = performance.now();
    for (const [name, other] of this.others) if (now - other.at > SILENCE_MILLISECONDS) this.others.delete(name);
    if (!this.stream) this.open(now);
    else if (document.hidden || !this.mayKeep()) this.letGo();
    else if (this.isStuck(now)) this.rest();
    this.beat();
    this.compare();
  }

  isStuck(now) {
    const state = this.stream.readyState;
    return state === EventSource.CLOSED || (state === EventSource.CONNECTING && now - this.connectsSince > OPENING_MILLISECONDS);
  }

  // Of pages that opened at the same moment, those whose names come first keep their streams.
  mayKeep() {
    const before = [...this.others].filter(([name]) => name < this.name);
    return before.length < MOST_STREAMS && !before.some(([, other]) => other.address === this.address);
  }

  open(now) {
    if (document.hidden || now < this.restsUntil || this.sharers().length || this.others.size >= MOST_STREAMS) return;
    this.stream = new EventSource(this.address);
    this.connectsSince = now;
    this.stream.addEventListener("open", () => this.tend());
    this.stream.addEventListener("error", () => {
      this.connectsSince = performance.now();
      this.tend();
    });
    for (const kind of KINDS) {
      this.stream.addEventListener(kind, () => {
        this.say("news");
        this.hear();
      });
    }
  }

  letGo() {
    if (!this.stream) return;
    this.stream.close();
    this.stream = null;
    this.say("bye");
    this.compare();
  }

  // Where news begins to come by itself, or ends to, something may have been missed.
  compare() {
    if (this.isTold !== this.wasTold) this.hear();
    this.wasTold = this.isTold;
  }

  beat() {
    if (this.stream) this.say("beat");
  }

  say(kind) {
    const isOpen = this.stream?.readyState === EventSource.OPEN;
    this.channel?.postMessage({ kind, name: this.name, address: this.address, isOpen });
  }

  listen({ kind, name, address, isOpen }) {
    if (kind === "hello") return this.beat();
    if (kind === "bye") this.others.delete(name);
    else this.others.set(name, { address, isOpen, at: performance.now() });
    if (kind === "news" && address === this.address) this.hear();
    if (kind === "bye") this.tend();
    this.compare();
  }

  sharers() {
    return [...this.others.values()].filter((other) => other.address === this.address);
  }
}
