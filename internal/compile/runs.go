package compile

import (
	"bytes"
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/passes/buffer"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/runtime/exe"
)

// Run is one run of an op in the compiled step: who it is, and where it reads and writes. It is what a
// trace needs to find an op's results in memory.
type Run struct {
	exe.OpRun
	IR     *ir.Op // in the final program; its Remat is the original
	Reads  []Span // by operand
	Writes []Span // by result
	// Values are the ids of the results in the program before planning, the same at every budget. An op in a
	// region has none: it is told by ID and Sub.
	Values []int
}

// Span is where a value is while an op runs.
type Span struct {
	Const         bool  // in the constant pool
	Offset, Bytes int64 // in the arena
}

// runTable numbers the runs of ops as they are emitted. A nil table does nothing.
type runTable struct {
	who  map[*ir.Op]Run
	runs []Run
}

// newRunTable gives every op of a planned function, and of its regions, its identity.
func newRunTable(p *planned) *runTable {
	t := &runTable{who: map[*ir.Op]Run{}}
	a, planned := p.applied, p.runs()
	for _, op := range a.Func.Body.Ops {
		r, ok := a.Runs[op]
		if !ok {
			continue
		}
		sub := 0
		var walk func(op *ir.Op)
		walk = func(op *ir.Op) {
			who := Run{IR: op, OpRun: exe.OpRun{Op: r.Op, ID: r.ID, Sub: sub, Clone: r.Clone, Planned: planned[r.Op], Name: remat.Name(op), Layer: op.Loc.Layer}}
			if sub == 0 {
				who.Values = r.Values
			}
			t.who[op] = who
			if !buffer.IsControl(op) {
				return
			}
			for _, b := range op.Regions {
				for _, o := range b.Ops {
					sub++
					walk(o)
				}
			}
		}
		walk(op)
	}
	return t
}

// open starts the run of an op that is about to be emitted; it returns the run's number, −1 where there
// is none.
func (t *runTable) open(op *ir.Op, where func(*ir.Value) place) int {
	if t == nil || lower.IsConstant(op) || lower.IsView(op) {
		return -1
	}
	r, ok := t.who[op]
	if !ok {
		return -1
	}
	spans := func(vs []*ir.Value) []Span {
		out := make([]Span, len(vs))
		for i, v := range vs {
			p := where(v)
			out[i] = Span{p.konst, p.offset, p.bytes}
		}
		return out
	}
	r.Reads, r.Writes = spans(op.Operands), spans(op.Results)
	t.runs = append(t.runs, r)
	return len(t.runs) - 1
}

// close ends a run: all instructions from first on that no run inside it took are its own.
func (t *runTable) close(run int, prog []exe.Inst, first int) {
	if run < 0 {
		return
	}
	if first == len(prog) { // no element, no launch: as if it were not there
		t.runs = t.runs[:run]
		return
	}
	r := &t.runs[run]
	r.First, r.Last, r.Entry, r.Repeat = first, len(prog)-1, first, -1
	branch := false
	for i := first; i < len(prog); i++ {
		in := &prog[i]
		if in.Run != 0 {
			continue
		}
		in.Run = run + 1
		switch {
		case (in.Kind == exe.BranchIfFalse || in.Kind == exe.Case) && !branch:
			r.Entry, branch = i, true
		case in.Kind == exe.Jump && in.Targets[0] <= i:
			r.Repeat = i
		}
	}
}

// ops are the runs in the order of the program; instructions name them by their place here.
func (t *runTable) ops() []exe.OpRun {
	out := make([]exe.OpRun, len(t.runs))
	for i, r := range t.runs {
		out[i] = r.OpRun
	}
	return out
}

// OpCount is how often the plan runs an op in a step: Planned times, of which all but one are recomputations.
type OpCount struct {
	Op      int    `json:"op"`
	ID      int    `json:"id"`
	Sub     int    `json:"sub"` // not 0: an op of a region; Planned is how often the op around it runs
	Name    string `json:"name"`
	Planned int    `json:"planned"`
}

// PlannedRuns is how often the plan runs an op in a step, by the op's id in the program before planning. An op
// that is not there was fused into its readers.
func (p *Program) PlannedRuns() map[int]int {
	runs := p.planned.runs()
	n := map[int]int{}
	for _, r := range p.planned.applied.Runs {
		n[r.ID] = runs[r.Op]
	}
	return n
}

// runs is how often the plan runs an op in a step, by the op's number. The plan tells an op by its place in the
// problem, which is another one where ops before it were fused into their readers.
func (p *planned) runs() map[int]int {
	n := map[int]int{}
	for _, i := range p.plan.Order {
		n[p.problem.Number[i]]++
	}
	return n
}

// Counts are the plan's counts of every op that has code, by op and sub.
func (p *Program) Counts() []OpCount {
	var out []OpCount
	for _, r := range exe.SortOps(p.Exe.Ops) {
		if n := len(out); n == 0 || out[n-1].Op != r.Op || out[n-1].Sub != r.Sub {
			out = append(out, OpCount{r.Op, r.ID, r.Sub, r.Name, r.Planned})
		}
	}
	return out
}

// sameKernels shows, on the program as it will run, that every run of an op stands there once, and
// that a clone runs the kernels of its original: the same functions with as many tiles. A kernel is chosen
// by an op's structure alone, and the constants that it reads are the op's, so another one means that the two are not the same op.
func sameKernels(x *exe.Model, runs []Run) error {
	prog := x.Step
	constant := func(a exe.Arg) []byte { return x.Consts[a.Offset : a.Offset+a.Bytes] }
	type who struct{ id, sub, clone int }
	first := map[who]int{}
	own := func(run int) []int {
		var out []int
		for i := runs[run].First; i <= runs[run].Last; i++ {
			if prog[i].Run == run+1 && prog[i].Kind == exe.Launch {
				out = append(out, i)
			}
		}
		return out
	}
	for i := range runs {
		r := &runs[i]
		k := who{r.ID, r.Sub, r.Clone}
		if _, ok := first[k]; ok {
			return runError(r, "its run %d stands in the program twice", r.Clone)
		}
		first[k] = i
		if r.Clone == 0 {
			continue
		}
		o, ok := first[who{r.ID, r.Sub, 0}]
		if !ok {
			return runError(r, "it is recomputed before it runs for the first time")
		}
		if !alike(r.IR, runs[o].IR) {
			continue // it computes an operand for itself, which the other reads
		}
		mine, theirs := own(i), own(o)
		same := len(mine) == len(theirs)
		for j := 0; same && j < len(mine); j++ {
			a, b := &prog[mine[j]], &prog[theirs[j]]
			same = a.Symbol == b.Symbol && a.Tiles == b.Tiles && slices.EqualFunc(a.Args, b.Args, func(p, q exe.Arg) bool {
				return p.Const == q.Const && (!p.Const || bytes.Equal(constant(p), constant(q)))
			})
		}
		if !same {
			return runError(r, "recomputation %d runs other kernels than its first run", r.Clone)
		}
	}
	return nil
}

// alike: two ops have the same kernel inside.
func alike(a, b *ir.Op) bool {
	if a.Def.Name != b.Def.Name || len(a.Operands) != len(b.Operands) || len(a.Regions) != len(b.Regions) {
		return false
	}
	for i := range a.Regions {
		if !slices.EqualFunc(a.Regions[i].Ops, b.Regions[i].Ops, func(x, y *ir.Op) bool { return x.Def.Name == y.Def.Name }) {
			return false
		}
	}
	return true
}

func runError(r *Run, format string, args ...any) error {
	return proofError(r.IR, "kernel", "%s: %s", r.Name, fmt.Sprintf(format, args...))
}
