// Browsers start no worker for a page that is opened as a file. Search then runs in a hidden frame of this page instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const url = new URL(address, location.href).href;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      this.ready = new Promise((resolve) => { this.begin = resolve; });
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      // What a worker loads on its way comes as script elements, one after the other.
      let loaded = Promise.resolve();
      inside.importScripts = (...sources) => {
        for (const source of sources) loaded = loaded.then(() => this.load(inside, new URL(source, url).href));
        return loaded;
      };
      this.inside = inside;
      this.load(inside, url).then(() => this.begin());
    }

    load(inside, source) {
      return new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = source;
        script.onload = resolve;
        script.onerror = reject;
        inside.document.documentElement.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => {
        const event = new MessageEvent("message", { data });
        this.inside.dispatchEvent(event);
      });
    }

    terminate() {}
  };
}
