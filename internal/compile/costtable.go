package compile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"

	"reprise/internal/diag"
	"reprise/passes/remat"
)

// CostFormat is the format of a table of costs.
const CostFormat = "reprise.costs/1"

// CostTable is measured times of a model's ops, which the planner takes in the place of its estimates. It is
// read once and never changed.
type CostTable struct {
	file string
	sum  string
	ops  []costEntry
}

type costEntry struct {
	ID             int    `json:"id"`                        // of the op, as reprise explain --json has it
	Op             string `json:"op"`                        // its name there; "": not compared
	Ns             int64  `json:"ns"`                        // time of one run
	WorkspaceBytes int64  `json:"workspace_bytes,omitempty"` // measured; the larger of it and the layout's is planned
}

// CostReport says what a table of costs covered.
type CostReport struct {
	SHA256  string   `json:"sha256"` // of the file
	Given   int      `json:"given"`  // ops whose time is from the table
	Missing []string `json:"missing,omitempty"`
}

// ReadCosts reads a table of costs; file is for messages. Whether it is this model's shows when it is used.
func ReadCosts(file string, data []byte) (*CostTable, error) {
	var doc struct {
		Format string      `json:"format"`
		Ops    []costEntry `json:"ops"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return nil, costError(file, "%s is no table of costs: %v", file, err)
	}
	if doc.Format != CostFormat {
		return nil, costError(file, "%s has format %q, want %q", file, doc.Format, CostFormat)
	}
	seen := map[int]bool{}
	for _, e := range doc.Ops {
		switch {
		case seen[e.ID]:
			return nil, costError(file, "%s: op %d is given twice", file, e.ID)
		case e.Ns < 0 || e.WorkspaceBytes < 0 || e.Ns > math.MaxInt64>>20 || e.WorkspaceBytes > math.MaxInt64>>20:
			return nil, costError(file, "%s: op %d: %d ns and %d bytes: want numbers that are not negative, nor larger than %d", file, e.ID, e.Ns, e.WorkspaceBytes, int64(math.MaxInt64>>20))
		}
		seen[e.ID] = true
	}
	sum := sha256.Sum256(data)
	return &CostTable{file: file, sum: hex.EncodeToString(sum[:]), ops: doc.Ops}, nil
}

func costError(file, format string, args ...any) error {
	e := diag.Errorf("costs", format, args...).
		WithHint(`write {"format":%q,"ops":[{"id":ID,"op":"NAME","ns":N}, …]}; ids and names are those of reprise explain --json`, CostFormat)
	e.File = file
	return e
}

// apply puts the table's costs into a planning problem. A nil table does nothing.
func (c *CostTable) apply(pr *remat.Problem) (*CostReport, error) {
	if c == nil {
		return nil, nil
	}
	rep := &CostReport{SHA256: c.sum}
	given := make([]bool, len(pr.Ops))
	at := make(map[int]int, len(pr.Ops))
	for i, n := range pr.Number {
		at[n] = i
	}
	for _, e := range c.ops {
		i, ok := at[e.ID]
		if !ok {
			return nil, costError(c.file, "%s: op %d: the model has ops 0 to %d", c.file, e.ID, len(pr.Ops)-1)
		}
		op := pr.Ops[i]
		if name := opLabel(op); e.Op != "" && e.Op != name {
			err := diag.As(costError(c.file, "%s: op %d is %q there, and %q in this model: the table is of another model", c.file, e.ID, e.Op, name))
			err.Layer, err.Op = op.Loc.Layer, op.Name()
			return nil, err
		}
		if pr.Lowered[i] == nil { // a view takes no time, whatever is said
			continue
		}
		po := &pr.Problem.Ops[i]
		po.Cost, po.Workspace = e.Ns, max(po.Workspace, remat.RoundUp(e.WorkspaceBytes))
		given[i] = true
		rep.Given++
	}
	for i, op := range pr.Ops {
		if !given[i] && pr.Lowered[i] != nil {
			rep.Missing = append(rep.Missing, opLabel(op))
		}
	}
	return rep, nil
}

// warning says what the table lacks, "" where it lacks nothing.
func (r *CostReport) warning() string {
	if r == nil || len(r.Missing) == 0 {
		return ""
	}
	return fmt.Sprintf("the table of costs lacks %d ops, whose time is estimated from their shapes: %s%s", len(r.Missing), r.Missing[0],
		map[bool]string{true: " and others", false: ""}[len(r.Missing) > 1])
}
