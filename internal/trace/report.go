package trace

import (
	"errors"
	"fmt"
	"strings"

	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/passes/lower"
	"reprise/passes/remat"
)

// Kinds of divergence.
const (
	KindValue   = "value"   // an op wrote other bits than in the program that keeps everything
	KindClone   = "clone"   // a recomputation wrote other bits than the first run in the same step
	KindMemory  = "memory"  // an operand lost its bytes between its producer and a reader
	KindMissing = "missing" // an op of the program that keeps everything did not run
	KindExtra   = "extra"   // an op ran that did not run there
	KindResult  = "result"  // every op wrote the same bits, and a result of the step differs
	KindCount   = "count"   // an op ran more or less often than planned
)

// Divergence is the first difference of two traces, told in terms of the model.
type Divergence struct {
	Kind     string `json:"kind"`
	Step     int    `json:"step"`     // from 1
	Position int    `json:"position"` // in the planned program, as reprise explain counts; -1: at the end of the step
	Op       int    `json:"op"`       // number in the plan
	ID       int    `json:"id"`       // and in the program before planning
	Sub      int    `json:"sub"`      // not 0: an op in a region
	Clone    int    `json:"clone"`    // which recomputation; 0: the first run
	Turn     int    `json:"turn"`     // of the loop around, from 0
	Layer    string `json:"layer"`
	Kernel   string `json:"kind_of_op"`       // e.g. "attention"; of a fused kernel what it is built around
	Inside   string `json:"inside,omitempty"` // the ops of a fused kernel
	Name     string `json:"name"`             // layer path, provenance, source, kind
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Value    string `json:"value"` // e.g. "result 0"
	DType    string `json:"dtype"`
	Shape    string `json:"shape"`
	Decision bool   `json:"decision"` // an index, or something that decides

	PlannedHash string      `json:"planned_hash"`
	OtherHash   string      `json:"other_hash"`
	FirstHash   string      `json:"first_run_hash,omitempty"` // of the original in the same step, for a clone
	Difference  *Difference `json:"difference,omitempty"`
	Note        string      `json:"note,omitempty"`

	Chain    []Link `json:"chain"` // what it was computed from, back to the nearest saved values
	Planned  int64  `json:"planned"`
	Executed int64  `json:"executed"`
}

// Link is a value in a producer chain.
type Link struct {
	Depth int    `json:"depth"`
	Value string `json:"value"`
	Type  string `json:"type"`
	Fate  string `json:"fate"` // saved, recomputed, parameter, …
	Hash  string `json:"hash,omitempty"`
	Same  bool   `json:"same"` // as in the program that keeps everything
}

func hex(h uint64) string { return fmt.Sprintf("%016x", h) }

// of fills in who a run is.
func (c *comparison) of(x *side, kind string, run, turn int) *Divergence {
	r := &x.runs[run]
	d := &Divergence{Kind: kind, Step: c.n + 1, Position: x.pos[run], Op: r.Op, ID: r.ID, Sub: r.Sub, Clone: r.Clone, Turn: turn, Layer: r.Layer,
		Kernel: remat.Kind(r.IR), Name: r.Name, File: r.IR.Loc.File, Line: r.IR.Loc.Line, Chain: []Link{}}
	if r.IR.Name() == "fused" {
		var inside []string
		for _, o := range r.IR.Regions[0].Ops {
			switch o.Name() {
			case "broadcast", "constant", "reshape":
			default:
				inside = append(inside, o.Name())
			}
		}
		d.Inside = strings.Join(inside, ", ")
	}
	return d
}

// about fills in what a value is.
func (d *Divergence) about(v *ir.Value, i int) {
	d.Value, d.DType = fmt.Sprintf("result %d", i), v.Type.DType.String()
	d.Shape = strings.TrimPrefix(v.Type.String(), d.DType)
	t := v.Type.DType
	d.Decision = t.IsInt() || t == dtype.Bool || v.Op != nil && remat.Det(v.Op) == ir.Decides
}

// diverges reports result i of a run of the planned program.
func (c *comparison) diverges(run, turn, i int, got uint64, want, own *uint64) (*Divergence, error) {
	x := c.planned
	r := &x.runs[run]
	kind := KindValue
	switch {
	case r.Clone > 0 && own != nil && got != *own:
		kind = KindClone
	case want == nil:
		kind = KindExtra
	}
	d := c.of(x, kind, run, turn)
	v := r.IR.Results[i]
	d.about(v, i)
	d.PlannedHash = hex(got)
	d.Chain = c.chain(r.IR)
	if r.Clone > 0 && own != nil {
		d.FirstHash = hex(*own)
	}
	if want == nil {
		return d, nil
	}
	d.OtherHash = hex(*want)
	mine := append([]byte{}, x.bytes(r.Writes[i])...)
	other, err := c.again(r, turn, i)
	if err != nil {
		return nil, err
	}
	if Hash(other) != *want {
		d.Note = "the op gave other bits when the step that keeps everything was run again: it is not deterministic"
	}
	d.Difference = difference(v.Type.DType, v.Type.Shape, mine, other)
	return d, nil
}

// again runs the other program's step again, from the memory that it found, up to what is result i of r.
func (c *comparison) again(r *compile.Run, turn, i int) ([]byte, error) {
	x := c.all
	copy(x.arena, c.before)
	if err := x.inst.SetStepNumber(int64(c.n)); err != nil {
		return nil, err
	}
	if err := x.begin(); err != nil {
		return nil, err
	}
	f := &finder{x: x, r: r, turn: turn, i: i}
	if err := x.step(f); err != nil && !errors.Is(err, errFound) {
		return nil, err
	}
	after := f.found
	for at := 0; at >= 0; { // to the end, so that its results are there
		var err error
		if at, err = x.inst.StepNext(); err != nil {
			return nil, err
		}
	}
	return after, nil
}

var errFound = errors.New("found")

type finder struct {
	x       *side
	r       *compile.Run
	turn, i int
	found   []byte
}

func (f *finder) enter(int) error { return nil }

func (f *finder) leave(run, turn int) error {
	r := &f.x.runs[run]
	if r.ID != f.r.ID || r.Sub != f.r.Sub || turn != f.turn {
		return nil
	}
	k := (&values{ids: r.Values}).of(f.r, f.i)
	f.found = append([]byte{}, f.x.bytes(r.Writes[k])...)
	return errFound
}

// overwritten reports that operand i of a run is not what its producer wrote.
func (c *comparison) overwritten(run, i int, origin *ir.Value) *Divergence {
	x := c.planned
	r := &x.runs[run]
	d := c.of(x, KindMemory, run, x.turn[[2]int{r.ID, r.Sub}])
	v := r.IR.Operands[i]
	d.about(v, i)
	d.Value = fmt.Sprintf("operand %d, %s", i, c.source(origin))
	d.Chain = c.chain(r.IR)
	d.PlannedHash = hex(Hash(x.bytes(r.Reads[i])))
	if _, known := x.wrote[origin]; !known {
		d.Note = "that op did not run"
		return d
	}
	d.OtherHash = hex(x.wrote[origin])
	d.Note = "nothing wrote there since"
	lo, hi := r.Reads[i].Offset, r.Reads[i].Offset+r.Reads[i].Bytes
	for n := x.lastOf[origin]; n < len(x.past); n++ {
		in := &x.insts[x.past[n]]
		for _, a := range in.Args {
			if a.Write && !a.Const && a.Offset < hi && lo < a.Offset+a.Bytes {
				who := "no op (" + in.Layer + ")"
				if in.Run > 0 {
					who = x.runs[in.Run-1].Name
				}
				d.Note = fmt.Sprintf("%s (instruction %d) wrote over it", who, x.past[n])
				n = len(x.past)
				break
			}
		}
	}
	return d
}

// missing reports a run of the other program that has no counterpart.
func (c *comparison) missing(run int, k key) *Divergence {
	d := c.of(c.all, KindMissing, run, k.turn)
	d.OtherHash = hex(first(c.ref[k].hash))
	if rs := c.all.runs[run].IR.Results; len(rs) > 0 {
		d.about(rs[0], 0)
	}
	d.Position = -1
	return d
}

// end reports a result of the step.
func (c *comparison) end(name string, v *ir.Value, got, want []byte) *Divergence {
	d := &Divergence{Kind: KindResult, Step: c.n + 1, Position: -1, Name: name, Layer: name, Chain: []Link{}, PlannedHash: hex(Hash(got)), OtherHash: hex(Hash(want))}
	if o := memory(v).Op; o != nil {
		for run := range c.planned.runs {
			if c.planned.runs[run].IR == o {
				d = c.of(c.planned, KindResult, run, 0)
				d.PlannedHash, d.OtherHash = hex(Hash(got)), hex(Hash(want))
			}
		}
	}
	d.about(v, 0)
	d.Value = fmt.Sprintf("result %q of the step", name)
	d.Difference = difference(v.Type.DType, v.Type.Shape, got, want)
	return d
}

// miscounted reports an op that ran too often or too rarely.
func (c *comparison) miscounted(n Count) *Divergence {
	d := &Divergence{Kind: KindCount, Step: c.n + 1, Position: -1, Op: n.Op, ID: n.ID, Sub: n.Sub, Name: n.Name, Chain: []Link{}, Planned: n.Planned, Executed: n.Executed}
	for run := range c.planned.runs {
		if r := &c.planned.runs[run]; r.ID == n.ID && r.Sub == n.Sub {
			d = c.of(c.planned, KindCount, run, 0)
			break
		}
	}
	return d
}

// source says where a value comes from.
func (c *comparison) source(v *ir.Value) string {
	if v.Op == nil {
		return fmt.Sprintf("%s %s", v.Role(), v.Name)
	}
	return fmt.Sprintf("of %s", remat.Name(v.Op))
}

// maxChain bounds a chain, and with it the message.
const maxChain = 12

// chain lists what op was computed from: recomputed values with what they were computed from, back to
// values that were saved.
func (c *comparison) chain(op *ir.Op) []Link {
	x := c.planned
	out := []Link{}
	seen := map[*ir.Value]bool{}
	var walk func(op *ir.Op, depth int)
	walk = func(op *ir.Op, depth int) {
		for _, v := range op.Operands {
			v = memory(v)
			if seen[v] || len(out) >= maxChain {
				continue
			}
			seen[v] = true
			l := Link{Depth: depth, Value: c.source(v), Type: v.Type.String(), Same: true}
			h, known := x.wrote[v]
			if known {
				l.Hash = hex(h)
			}
			switch {
			case v.Op == nil && v.Block.Owner != nil:
				l.Value, l.Fate = fmt.Sprintf("%s of %s", v.Name, remat.Name(v.Block.Owner)), "argument of a region"
				out = append(out, l)
				continue
			case v.Op == nil:
				l.Fate = "in memory all the time"
				out = append(out, l)
				continue
			case lower.IsConstant(v.Op):
				l.Value, l.Fate = "a constant", "in the program"
				out = append(out, l)
				continue
			}
			run := -1
			for i := range x.runs {
				if x.runs[i].IR == v.Op {
					run = i
					break
				}
			}
			if run < 0 {
				l.Fate = "did not run"
				out = append(out, l)
				continue
			}
			r := &x.runs[run]
			l.Value = r.Name
			if want := c.ref[key{r.ID, r.Sub, max(0, x.turn[[2]int{r.ID, r.Sub}]-1)}].find(r, v.Index); want != nil {
				l.Same = *want == h
			}
			if r.Clone == 0 {
				l.Fate = fmt.Sprintf("saved at position %d", x.pos[run])
				out = append(out, l)
				continue
			}
			l.Fate = fmt.Sprintf("recomputed at position %d", x.pos[run])
			out = append(out, l)
			walk(v.Op, depth+1)
		}
	}
	walk(op, 0)
	return out
}

// Error is the message for a person, of at most forty lines.
func (d *Divergence) Error() string { return d.Diag().Error() }

// Unwrap gives the message as a diagnostic.
func (d *Divergence) Unwrap() error { return d.Diag() }

// Diag is the divergence as a message with layer, op and source.
func (d *Divergence) Diag() *diag.Error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, "\n  "+format, args...) }
	run := "the first run"
	if d.Clone > 0 {
		run = fmt.Sprintf("recomputation %d", d.Clone)
	}
	switch d.Kind {
	case KindValue:
		fmt.Fprintf(&b, "%s is the first op that writes other bits than in the program that keeps everything", run)
	case KindClone:
		fmt.Fprintf(&b, "%s is the first op that writes other bits: its first run in the same step wrote those of the program that keeps everything", run)
	case KindMemory:
		fmt.Fprintf(&b, "%s reads an operand that is not what was written", run)
	case KindMissing:
		fmt.Fprintf(&b, "it did not run, and does in the program that keeps everything")
	case KindExtra:
		fmt.Fprintf(&b, "%s does not happen in the program that keeps everything", run)
	case KindResult:
		fmt.Fprintf(&b, "%s differs, although every op wrote the same bits", d.Value)
	case KindCount:
		fmt.Fprintf(&b, "it ran %d times, planned were %d", d.Executed, d.Planned)
	}
	where := fmt.Sprintf("op %d", d.Op)
	if d.Sub > 0 {
		where += fmt.Sprintf(".%d (in its regions), turn %d", d.Sub, d.Turn)
	}
	if d.Position >= 0 {
		where += fmt.Sprintf(", at position %d of the planned program", d.Position)
	}
	line("where      step %d, %s", d.Step, where)
	if d.Inside != "" {
		line("kernel of  %s", clip(d.Inside, 90))
	}
	if d.DType != "" {
		what := "an ordinary value"
		if d.Decision {
			what = "an index or a decision: what it routes differs too"
		}
		line("value      %s, %s%s, %s", d.Value, d.DType, d.Shape, what)
		what = "keeping everything"
		if d.Kind == KindMemory {
			what = "written"
		}
		line("hashes     planned %s, %s %s", orNone(d.PlannedHash), what, orNone(d.OtherHash))
		if d.FirstHash != "" {
			line("           first run in the planned program %s", d.FirstHash)
		}
	}
	if x := d.Difference; x != nil {
		line("elements   %d of %d differ, the first at %v: %s, not %s", x.Differ, x.Elements, x.First, x.Planned, x.Other)
		if x.MaxULP != nil {
			line("distance   at most %d ULP", *x.MaxULP)
			if x.NaN > 0 {
				fmt.Fprintf(&b, ", and %d elements are NaN on one side only", x.NaN)
			}
		}
	}
	if d.Note != "" {
		line("note       %s", d.Note)
	}
	line("counts     planned %d, executed %d, in all steps so far", d.Planned, d.Executed)
	if len(d.Chain) > 0 {
		line("computed from, back to the nearest saved values:")
		for _, l := range d.Chain {
			same := "same bits"
			if !l.Same {
				same = "OTHER BITS"
			}
			line("  %s%s %s, %s, %s", strings.Repeat("  ", min(l.Depth, 6)), clip(l.Value, 60), l.Type, l.Fate, same)
		}
		if len(d.Chain) >= maxChain {
			line("  … (the chain is cut: see the full trace)")
		}
	}
	e := diag.Errorf("trace", "%s", b.String()).WithHint("--trace-file FILE writes both traces whole, aligned by op")
	e.Layer, e.Op, e.File, e.Line = d.Layer, d.Kernel, d.File, d.Line
	return e
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
