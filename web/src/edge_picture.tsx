import { useStore, ViewportPortal } from "@xyflow/react";
import { type CSSProperties, memo, useMemo } from "react";
import type { FlowJob } from "./api.ts";
import type { Critical } from "./critical_path.ts";
import { HEIGHT, type Places, WIDTH } from "./layout.ts";
import { lines } from "./lines.ts";

/** As thin as a line may be on the screen, however far away. */
const THINNEST = 0.5;

/** All edges of a large graph in one picture, behind the jobs. */
export const EdgePicture = memo(function EdgePicture(props: { jobs: FlowJob[]; places: Places; critical: Critical }) {
  const { jobs, places, critical } = props;
  const drawn = useMemo(() => lines(jobs, places, critical, { width: WIDTH, height: HEIGHT }), [jobs, places, critical]);
  const size = useMemo(() => {
    const points = [...places.values()];
    return {
      width: points.reduce((most, { x }) => Math.max(most, x), 0) + WIDTH,
      height: points.reduce((most, { y }) => Math.max(most, y), 0) + HEIGHT,
    };
  }, [places]);
  // In steps, so that a graph that is moved, or zoomed a little, is not drawn again.
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
