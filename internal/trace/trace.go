package trace

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"unsafe"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/ir"
	"reprise/passes/lower"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// Side is one compiled program: a library and what it was made from.
type Side struct {
	Library string
	Program *compile.Program
}

// Options of a comparison.
type Options struct {
	Seed    uint64
	Steps   int
	Threads int       // 0: all
	File    io.Writer // takes every value of both traces, aligned; may be nil
}

// Result is what a comparison found.
type Result struct {
	Steps  int   `json:"steps"`  // compared
	Values int64 `json:"values"` // written by the planned program and compared with those of the other
	Clones int64 `json:"clones"` // of which were written by recomputations, and compared with the first run too
	Reads  int64 `json:"reads"`  // operands that still had the bytes that were written
	// Counts are of all steps.
	Counts     []Count     `json:"counts"`
	Divergence *Divergence `json:"divergence,omitempty"` // nil: none
}

// Count is how often the planned program was to run an op, and did.
type Count struct {
	Op         int    `json:"op"`  // in the plan
	ID         int    `json:"id"`  // in the program before planning
	Sub        int    `json:"sub"` // not 0: an op in a region
	Name       string `json:"name"`
	Planned    int64  `json:"planned"`
	Executed   int64  `json:"executed"`
	Forward    int64  `json:"forward"`
	Recomputed int64  `json:"recomputed"`
}

// Compare runs both programs of a model for o.Steps steps, or to the end of the first step with a
// divergence.
func Compare(m *frontend.Model, planned, all Side, o Options) (*Result, error) {
	b, err := open(all, o)
	if err != nil {
		return nil, err
	}
	defer b.inst.Close()
	a, err := open(planned, o)
	if err != nil {
		return nil, err
	}
	defer a.inst.Close()
	c := &comparison{planned: a, all: b, res: &Result{Counts: []Count{}}, plannedRuns: map[[2]int]int64{}}
	c.plan = planned.Program.PlannedRuns()
	if o.File != nil {
		c.file = bufio.NewWriter(o.File)
		fmt.Fprintf(c.file, "# trace of %s: the planned program (%d bytes) against the one that keeps everything (%d bytes), seed %d\n",
			m.Spec, planned.Program.Report.ArenaBytes, all.Program.Report.ArenaBytes, o.Seed)
		fmt.Fprintf(c.file, "# step position op clone turn planned all verdict type name\n")
	}
	for s := range o.Steps {
		for _, p := range m.Module.Func("step").Body.Params {
			if p.Role() != ir.RoleInput {
				continue
			}
			t, err := compile.SyntheticInput(p, o.Seed, s)
			if err != nil {
				return nil, err
			}
			for _, x := range []*side{a, b} {
				if err := x.inst.Bind(p.Name, t.Data); err != nil {
					return nil, err
				}
			}
		}
		if err := c.step(s); err != nil {
			return nil, err
		}
		c.res.Steps++
		if c.res.Divergence != nil {
			break
		}
	}
	if err := c.counts(); err != nil {
		return nil, err
	}
	if c.file != nil {
		return c.res, c.file.Flush()
	}
	return c.res, nil
}

// side is a program in the middle of being run by instructions.
type side struct {
	prog   *compile.Program
	insts  []exe.Inst
	runs   []compile.Run
	parent []int // of runs: the control-flow op around, −1: none
	pos    []int // of runs: position of the op at the top in the final program
	arena  []byte
	inst   *runtime.Instance

	active []int                // runs that were entered and not left, outermost first
	wrote  map[*ir.Value]uint64 // hash of what was last written
	lastOf map[*ir.Value]int    // instructions executed when it was
	turn   map[[2]int]int       // executions of an op within the run of its op at the top
	past   []int                // instructions executed in this step
	count  []int64              // executions of runs, all steps
}

// open loads a program into an arena of ours.
func open(s Side, o Options) (*side, error) {
	p := s.Program
	x := &side{prog: p, insts: p.Exe.Step, runs: p.Runs, count: make([]int64, len(p.Runs)), arena: aligned(p.Exe.ArenaBytes)}
	position := map[*ir.Op]int{}
	for i, op := range p.Step.Func("step").Body.Ops {
		position[op] = i
	}
	var around []int
	for i, r := range x.runs {
		for len(around) > 0 && x.runs[around[len(around)-1]].Last < r.First {
			around = around[:len(around)-1]
		}
		parent := -1
		if r.Sub > 0 && len(around) > 0 {
			parent = around[len(around)-1]
		}
		x.parent = append(x.parent, parent)
		if parent >= 0 {
			x.pos = append(x.pos, x.pos[parent])
		} else {
			x.pos = append(x.pos, position[r.IR])
		}
		around = append(around, i)
	}
	var err error
	x.inst, err = runtime.Load(s.Library, runtime.Options{Seed: o.Seed, Threads: o.Threads, Arena: x.arena})
	return x, err
}

// aligned is memory that starts at a multiple of 64 bytes.
func aligned(n int64) []byte {
	b := make([]byte, n+exe.Align)
	off := int64(-uintptr(unsafe.Pointer(&b[0])) % exe.Align)
	return b[off : off+n : off+n]
}

func (x *side) bytes(s compile.Span) []byte {
	if s.Const {
		return x.prog.Exe.Consts[s.Offset : s.Offset+s.Bytes]
	}
	return x.arena[s.Offset : s.Offset+s.Bytes]
}

// begin starts a step: nothing was written yet but states and inputs.
func (x *side) begin() error {
	if err := x.inst.StepBegin(); err != nil {
		return err
	}
	x.active, x.past = x.active[:0], x.past[:0]
	x.wrote, x.lastOf, x.turn = map[*ir.Value]uint64{}, map[*ir.Value]int{}, map[[2]int]int{}
	for _, p := range x.prog.Step.Func("step").Body.Params {
		if v := x.prog.Exe.Find(p.Name); v != nil {
			x.wrote[p] = Hash(x.arena[v.Offset : v.Offset+v.Bytes])
		}
	}
	return nil
}

// watcher is told when an op starts and when it has ended, in order; turn counts the executions of the op within
// that of the op at the top around it. An error ends the step early.
type watcher interface {
	enter(run int) error
	leave(run, turn int) error
}

// step runs a step under the eyes of w.
func (x *side) step(w watcher) error {
	for at := 0; at >= 0; {
		if at < len(x.insts) {
			if err := x.enter(x.insts[at].Run-1, w); err != nil {
				return err
			}
			x.past = append(x.past, at)
		}
		next, err := x.inst.StepNext()
		if err != nil {
			return err
		}
		for n := len(x.active) - 1; n >= 0; n-- {
			run := x.active[n]
			r := &x.runs[run]
			if next >= r.First && next <= r.Last {
				break
			}
			x.active = x.active[:n]
			for i, v := range r.IR.Results {
				x.wrote[v], x.lastOf[v] = Hash(x.bytes(r.Writes[i])), len(x.past)
			}
			key := [2]int{r.ID, r.Sub}
			turn := x.turn[key]
			x.turn[key]++
			x.count[run]++
			if err := w.leave(run, turn); err != nil {
				return err
			}
		}
		at = next
	}
	return nil
}

// enter makes a run and the runs around it active.
func (x *side) enter(run int, w watcher) error {
	if run < 0 || slices.Contains(x.active, run) {
		return nil
	}
	if err := x.enter(x.parent[run], w); err != nil {
		return err
	}
	x.active = append(x.active, run)
	if x.parent[run] < 0 { // turns are counted anew in every clone
		for key := range x.turn {
			if key[0] == x.runs[run].ID {
				delete(x.turn, key)
			}
		}
	}
	return w.enter(run)
}

// key is a run's identity in all programs of a model.
type key struct{ id, sub, turn int }

// values are the hashes of a run's results. Those of an op at the top are told by their ids: fusion may give
// it other results.
type values struct {
	hash []uint64
	ids  []int
}

// of finds the result that is result i of a run, −1 where it is not there.
func (v *values) of(r *compile.Run, i int) int {
	if r.Values == nil {
		return i
	}
	return slices.Index(v.ids, r.Values[i])
}

// comparison is both programs.
type comparison struct {
	planned, all *side
	file         *bufio.Writer
	res          *Result

	n           int
	ref         map[key]*values  // of the program that keeps everything
	own         map[key]*values  // of originals of the planned program
	seen        map[key]bool     // of ref, that the planned program ran
	plan        map[int]int      // runs of an op in a step
	plannedRuns map[[2]int]int64 // of ops, in all steps
	before      []byte           // the other's arena as the step found it
}

// step compares one step.
func (c *comparison) step(n int) error {
	c.n, c.ref, c.own, c.seen = n, map[key]*values{}, map[key]*values{}, map[key]bool{}
	c.before = append(c.before[:0], c.all.arena...)
	if err := c.all.begin(); err != nil {
		return err
	}
	r := &recorder{c: c}
	if err := c.all.step(r); err != nil {
		return err
	}
	if err := c.planned.begin(); err != nil {
		return err
	}
	if err := c.planned.step(&checker{c}); err != nil {
		return err
	}
	for _, k := range r.order {
		if c.seen[k] || c.plan[k.id] == 0 { // or its readers compute it for themselves
			continue
		}
		run := r.run[k]
		if c.file != nil {
			fmt.Fprintf(c.file, "%d - %d.%d 0 %d - %016x MISSING - %s\n", n, k.id, k.sub, k.turn, first(c.ref[k].hash), c.all.runs[run].Name)
		}
		if c.res.Divergence == nil {
			c.res.Divergence = c.missing(run, k)
		}
	}
	return c.results()
}

func first(h []uint64) uint64 {
	if len(h) == 0 {
		return 0
	}
	return h[0]
}

// recorder notes what the program that keeps everything writes.
type recorder struct {
	c     *comparison
	order []key
	run   map[key]int
}

func (r *recorder) enter(int) error { return nil }

func (r *recorder) leave(run, turn int) error {
	x := r.c.all
	op := &x.runs[run]
	k := key{op.ID, op.Sub, turn}
	if r.run == nil {
		r.run = map[key]int{}
	}
	r.order = append(r.order, k)
	r.run[k] = run
	r.c.ref[k] = x.hashes(run)
	r.c.plannedRuns[[2]int{op.ID, op.Sub}] += int64(r.c.plan[op.ID])
	return nil
}

func (x *side) hashes(run int) *values {
	r := &x.runs[run]
	out := &values{ids: r.Values}
	for _, v := range r.IR.Results {
		out.hash = append(out.hash, x.wrote[v])
	}
	return out
}

// checker compares what the planned program reads and writes.
type checker struct{ c *comparison }

// enter checks that the operands are what was written.
func (k *checker) enter(run int) error {
	c, x := k.c, k.c.planned
	r := &x.runs[run]
	for i, v := range r.IR.Operands {
		origin := memory(v)
		want, known := x.wrote[origin]
		switch {
		case r.Reads[i].Const || r.Reads[i].Bytes == 0:
			continue
		case !known && origin.Op == nil:
			continue // a parameter of a region: checked where it was made
		}
		if known && Hash(x.bytes(r.Reads[i])) == want {
			c.res.Reads++
			continue
		}
		if c.res.Divergence == nil {
			c.res.Divergence = c.overwritten(run, i, origin)
		}
	}
	return nil
}

// leave compares results with those of the other program, and with the original's.
func (k *checker) leave(run, turn int) error {
	c, x := k.c, k.c.planned
	r := &x.runs[run]
	id := key{r.ID, r.Sub, turn}
	got := x.hashes(run)
	if r.Clone == 0 {
		c.own[id] = got
	}
	c.seen[id] = true
	for i, h := range got.hash {
		want, own := c.ref[id].find(r, i), c.own[id].find(r, i)
		verdict := "="
		switch {
		case r.Clone > 0 && own != nil && h != *own:
			verdict = "CLONE-DIFFERS"
		case want != nil && h != *want:
			verdict = "DIFFERS"
		case want == nil && c.ref[id] != nil:
			verdict = "new" // a row statistic that fusion made a result
		case want == nil:
			verdict = "EXTRA"
		}
		if want != nil {
			c.res.Values++
		}
		if r.Clone > 0 {
			c.res.Clones++
		}
		if c.file != nil {
			other := "-"
			if want != nil {
				other = hex(*want)
			}
			fmt.Fprintf(c.file, "%d %d %d.%d %d %d %016x %s %s %s %s\n", c.n, x.pos[run], r.ID, r.Sub, r.Clone, turn, h, other, verdict, r.IR.Results[i].Type, r.Name)
		}
		if verdict == "=" || verdict == "new" || c.res.Divergence != nil {
			continue
		}
		d, err := c.diverges(run, turn, i, h, want, own)
		if err != nil {
			return err
		}
		c.res.Divergence = d
	}
	return nil
}

// find is the hash of what is result i of a run, nil where it is not there.
func (v *values) find(r *compile.Run, i int) *uint64 {
	if v == nil {
		return nil
	}
	if k := v.of(r, i); k >= 0 && k < len(v.hash) {
		return &v.hash[k]
	}
	return nil
}

// memory is the value whose bytes v is.
func memory(v *ir.Value) *ir.Value {
	for v.Op != nil && lower.IsView(v.Op) {
		v = v.Op.Operands[v.Index]
	}
	return v
}

// results compares what a step leaves behind: a value may be right when it is written and wrong at the
// end of the step, or on its way home.
func (c *comparison) results() error {
	f := c.planned.prog.Step.Func("step")
	for i, name := range f.Results {
		got, err := c.planned.inst.Read(name)
		if err != nil {
			return err
		}
		want, err := c.all.inst.Read(name)
		if err != nil {
			return err
		}
		if string(got) != string(want) && c.res.Divergence == nil {
			c.res.Divergence = c.end(name, f.Body.Results[i], got, want)
		}
	}
	return nil
}

// counts puts planned and executed counts side by side; a difference is a divergence where there was none.
func (c *comparison) counts() error {
	x := c.planned
	at := map[[2]int]int{}
	for run := range x.runs {
		r := &x.runs[run]
		id := [2]int{r.ID, r.Sub}
		i, ok := at[id]
		if !ok {
			i = len(c.res.Counts)
			at[id] = i
			c.res.Counts = append(c.res.Counts, Count{Op: r.Op, ID: r.ID, Sub: r.Sub, Name: r.Name, Planned: c.plannedRuns[id]})
		}
		n := &c.res.Counts[i]
		n.Executed += x.count[run]
		if r.Clone == 0 {
			n.Forward += x.count[run]
		} else {
			n.Recomputed += x.count[run]
		}
	}
	slices.SortStableFunc(c.res.Counts, func(a, b Count) int { return cmp.Or(a.Op-b.Op, a.Sub-b.Sub) })
	for _, n := range c.res.Counts {
		if n.Executed != n.Planned && c.res.Divergence == nil {
			c.res.Divergence = c.miscounted(n)
		}
	}
	if d := c.res.Divergence; d != nil {
		for _, n := range c.res.Counts {
			if n.ID == d.ID && n.Sub == d.Sub {
				d.Planned, d.Executed = n.Planned, n.Executed
			}
		}
	}
	return nil
}
