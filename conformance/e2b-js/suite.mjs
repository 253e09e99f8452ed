// Runs the cases: suite.mjs [PART_OF_A_NAME]

import "./commands.mjs";
import "./files.mjs";
import "./lifecycle.mjs";
import "./network.mjs";
import "./snapshots.mjs";
import { run } from "./harness.mjs";

await run(process.argv[2]);
