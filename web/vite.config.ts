import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Relative URLs: the page works under any path prefix of a proxy. Nothing is inlined: the server's
// Content-Security-Policy refuses inline scripts, inline styles and `data:`.
export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: process.env["BACKSTAY_DASHBOARD"] ?? "../src/backstay/server/dashboard",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // ELK is one file of that size; only the run page loads it, in a web worker.
    chunkSizeWarningLimit: 2000,
  },
});
