// Load n8n's engine and its nodes from one installation.
"use strict";
const path = require("path");
const { createRequire } = require("module");

exports.load = async (home) => {
  const modules = path.join(home, "node_modules");
  require("./stand_ins.cjs").install(modules);
  // Read while the engine loads: no telemetry, no writes to the user's folder, no child processes.
  Object.assign(process.env, {
    N8N_USER_FOLDER: path.join(home, "user"),
    N8N_RUNNERS_ENABLED: "false",
    N8N_DIAGNOSTICS_ENABLED: "false",
    N8N_LOG_LEVEL: process.env.N8N_LOG_LEVEL ?? "silent",
  });
  require("fs").mkdirSync(process.env.N8N_USER_FOLDER, { recursive: true });

  const find = createRequire(path.join(modules, "n8n-core", "package.json"));
  find("reflect-metadata");
  const core = find("n8n-core");
  const workflow = find("n8n-workflow");
  // As in the server, expressions run in a separate isolate, with n8n's default settings.
  const { Container } = find("@n8n/di");
  const settings = Container.get(find("@n8n/config").ExpressionEngineConfig);
  await workflow.Expression.initExpressionEngine(settings);
  // Binary data stays in the items as base64, so no files are needed.
  Container.get(core.BinaryDataService).mode = "default";

  const base = path.join(modules, "n8n-nodes-base");
  const known = require(path.join(base, "dist", "known", "nodes.json"));
  const loaded = new Map();
  const node = (type) => {
    if (!loaded.has(type)) {
      const found = known[type.replace(/^n8n-nodes-base\./, "")];
      if (!found) throw new Error(`this n8n has no node ${type}`);
      loaded.set(type, new (require(path.join(base, found.sourcePath))[found.className])());
    }
    return loaded.get(type);
  };
  const nodeTypes = {
    getByName: node,
    getByNameAndVersion: (type, version) => workflow.NodeHelpers.getVersionedNodeType(node(type), version),
    getKnownTypes: () => known,
  };

  class Credentials extends workflow.ICredentialsHelper {
    constructor(all) {
      super();
      this.all = new Map(all.map((one) => [one.id, one.data]));
    }
    getParentTypes() { return []; }
    isCredentialUsableByNode() { return true; }
    async authenticate(_credentials, _type, options) { return options; }
    async preAuthentication() { return undefined; }
    async runPreAuthentication() { return undefined; }
    async getCredentials({ id, name }, type) { return { id, name, type }; }
    async getDecrypted(_additional, { id }) {
      if (!this.all.has(id)) throw new Error(`there is no credential ${id}`);
      return this.all.get(id);
    }
    isCredentialUsableByNode() { return true; }
    async updateCredentials() {}
    async updateCredentialsOauthTokenData() {}
    getCredentialsProperties() { return []; }
  }
  const versions = Object.fromEntries(
    ["n8n-core", "n8n-workflow", "n8n-nodes-base"].map((name) => [name, require(path.join(modules, name, "package.json")).version]),
  );
  return { core, workflow, nodeTypes, Credentials, versions };
};
