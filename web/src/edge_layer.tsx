import { useStore, ViewportPortal } from "@xyflow/react";
import { type CSSProperties, memo, useMemo } from "react";
import type { FlowJob } from "./api.ts";
import type { Critical } from "./critical_path.ts";
import { HEIGHT, type Positions, WIDTH } from "./layout.ts";
import { edgePaths } from "./edge_paths.ts";

/** The thinnest line in screen pixels, at any zoom. */
const THINNEST = 0.5;

/** All edges of a large graph in one SVG behind the nodes. */
export const EdgeLayer = memo(function EdgeLayer(props: { jobs: FlowJob[]; positions: Positions; critical: Critical }) {
  const { jobs, positions, critical } = props;
  const drawn = useMemo(() => edgePaths(jobs, positions, critical, { width: WIDTH, height: HEIGHT }), [jobs, positions, critical]);
  const size = useMemo(() => {
    const points = [...positions.values()];
    return {
      width: points.reduce((most, { x }) => Math.max(most, x), 0) + WIDTH,
      height: points.reduce((most, { y }) => Math.max(most, y), 0) + HEIGHT,
    };
  }, [positions]);
  // Rounded to powers of two, so that panning and small zooms do not redraw the SVG.
  const zoom = useStore((state) => 2 ** Math.round(Math.log2(state.transform[2])));
  const style = { "--thin": Math.max(1, THINNEST / zoom) } as CSSProperties;
  return (
    <ViewportPortal>
      <svg className="edges" aria-hidden="true" width={size.width} height={size.height} style={style}>
        {[...drawn].map(([kind, path]) => (
          <g key={kind} className={`react-flow__edge ${kind}`}>
            <path className="react-flow__edge-path" d={path} />
          </g>
        ))}
      </svg>
    </ViewportPortal>
  );
});
