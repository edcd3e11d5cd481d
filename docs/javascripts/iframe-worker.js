/* Search of the site when its pages are opened as files: browsers refuse workers there, so a hidden frame stands in. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.inside = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source === this.inside) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
      const page = this.inside.document;
      page.open();
      page.write(
        "<script>postMessage = (data) => parent.postMessage(data, '*');" +
        "importScripts = (...urls) => urls.reduce((done, url) => done.then(() => new Promise((resolve) => {" +
        "const script = document.createElement('script'); script.src = url; script.onload = resolve;" +
        "document.body.appendChild(script); })), Promise.resolve());<\/script>" +
        '<body><script src="' + url + '"><\/script>'
      );
      page.close();
    }
    postMessage(data) {
      const send = () => this.inside.dispatchEvent(new MessageEvent("message", { data: data, source: window }));
      if (this.inside.document.readyState === "complete") {
        send();
      } else {
        this.frame.addEventListener("load", send, { once: true });
      }
    }
    terminate() {
      this.frame.remove();
    }
  };
}
