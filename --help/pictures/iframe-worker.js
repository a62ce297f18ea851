// Search when the site is read from disk: browsers start no Worker from a file, so its script runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const script = new URL(url, location.href).href
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.ready = new Promise((loaded) => {
        frame.onload = () => {
          const scope = frame.contentWindow
          scope.postMessage = scope.self.postMessage = (data) => {
            const event = new MessageEvent("message", { data: structuredClone(data) })
            this.dispatchEvent(event)
            if (this.onmessage) this.onmessage(event)
          }
          scope.importScripts = (...urls) => Promise.all(urls.map((one) => load(scope, one)))
          load(scope, script).then(() => loaded(scope))
        }
      })
      document.documentElement.append(frame)
      this.terminate = () => frame.remove()
    }
    postMessage(data) {
      this.ready.then((scope) => {
        const event = new MessageEvent("message", { data: structuredClone(data) })
        scope.dispatchEvent(event)
      })
    }
  }

function load(scope, url) {
  return new Promise((done, failed) => {
    const element = scope.document.createElement("script")
    Object.assign(element, { src: url, onload: done, onerror: failed })
    scope.document.documentElement.append(element)
  })
}
