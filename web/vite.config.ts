import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Relative addresses: the page works under any prefix a proxy gives it. Nothing is inlined: the server's
// Content-Security-Policy refuses inline scripts, inline styles and `data:`.
export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: process.env["BACKSTAY_DASHBOARD"] ?? "../src/backstay/server/dashboard",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // ELK's layout is one file of that size; it is loaded in a worker, by the page of a run alone.
    chunkSizeWarningLimit: 2000,
  },
});
