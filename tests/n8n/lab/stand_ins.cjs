// Missing packages load as stubs, since nodes require many that no test uses. A stub that is used throws.
"use strict";
const Module = require("module");

function absent(name) {
  const known = new Map();
  const refuse = () => { throw new Error(`the lab has no package for ${name}: add it to tests/n8n/lab/engines`); };
  return new Proxy(function () {}, {
    get(target, key) {
      if (key === "__esModule") return true;
      if (key === "prototype") return target.prototype;
      if (key === "then" || typeof key === "symbol") return undefined;
      if (!known.has(key)) known.set(key, absent(`${name}.${key}`));
      return known.get(key);
    },
    apply: refuse,
    construct: refuse,
  });
}

exports.install = (modules) => {
  const load = Module._load;
  const stood = new Map();
  Module._load = function (request, parent, ...rest) {
    try {
      return load.call(this, request, parent, ...rest);
    } catch (error) {
      const bare = !request.startsWith(".") && !request.startsWith("/");
      const ours = parent?.filename?.startsWith(modules);
      if (error.code !== "MODULE_NOT_FOUND" || !bare || !ours || !error.message.includes(`'${request}'`)) throw error;
      if (!stood.has(request)) stood.set(request, absent(request));
      return stood.get(request);
    }
  };
};
