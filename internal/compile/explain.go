package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"reprise/ir"
	"reprise/passes/buffer"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/planner"
)

// ExplanationFormat is the "format" of an Explanation.
const ExplanationFormat = "reprise.explain/1"

// Explanation is the step's schedule, its memory, and what became of every value and why. A compiled
// model carries it, and so does a plan's file. Positions count the ops of the final program
// from 0; position len(Ops) is the end of the step, where its results are still in memory.
type Explanation struct {
	Format    string          `json:"format"`
	Memory    Memory          `json:"memory"`
	Ops       []OpReport      `json:"ops"`
	Values    []ValueReport   `json:"values"`
	Stretches []StretchReport `json:"stretches"`
}

// Memory says what the arena's bytes are: ArenaBytes = StepResidentBytes + PeakBytes + UnusedBytes.
type Memory struct {
	StepResidentBytes int64  `json:"step_resident_bytes"` // states, keys, the step number and inputs
	PeakBytes         int64  `json:"peak_bytes"`          // the most that is in use beside them
	PeakPosition      int    `json:"peak_position"`       // the first position at which that much is
	PeakOp            string `json:"peak_op"`
	PeakLayer         string `json:"peak_layer"`
	UnusedBytes       int64  `json:"unused_bytes"` // holes of the layout, or what only @init needs
	ArenaBytes        int64  `json:"arena_bytes"`
}

// OpReport is one op of the schedule.
type OpReport struct {
	ID     int    `json:"id"`              // the planner's index of the op; -1 for a constant
	Clone  int    `json:"clone,omitempty"` // 0: the first run, k: the k-th time that it is run again
	Op     string `json:"op"`              // layer, provenance and kind
	Layer  string `json:"layer"`
	Source string `json:"source,omitempty"` // FILE:LINE of the model
	Ns     int64  `json:"ns"`               // estimated time; 0 for views and constants
	Bytes  int64  `json:"bytes"`            // in use while it runs, beside the residents
}

// StretchReport is one stretch of memory: bytes at an offset behind the residents, in use from op Start to op End.
type StretchReport struct {
	Value  int   `json:"value"` // index of the first value that lives in it; -1: a workspace of op Start
	Start  int   `json:"start"`
	End    int   `json:"end"`
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}

// Fates of a value.
const (
	FateResident   = "resident"   // in memory from start to end: state and inputs
	FateSaved      = "saved"      // computed once and kept to its last use
	FateRecomputed = "recomputed" // computed again for a later use
	FatePinned     = "pinned"     // computed once because it must not be computed twice
	FateLocal      = "local"      // used up right after it was made
	FateInPlace    = "in-place"   // written over something that nothing reads any more
	FateView       = "view"       // another shape of the same memory
	FateConstant   = "constant"   // stands in the program
	FateFused      = "fused"      // never in memory: its readers compute it while they read
)

// ValueReport says what became of a value and why.
type ValueReport struct {
	Name   string  `json:"name"` // stable: the parameter's, the model's, or layer, kind and a number
	ID     string  `json:"id"`   // its name in the text of the final program
	Layer  string  `json:"layer"`
	Op     string  `json:"op"`
	Source string  `json:"source,omitempty"` // FILE:LINE of the model
	Type   string  `json:"type"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	Bytes  int64   `json:"bytes"`
	Fate   string  `json:"fate"`
	Runs   int     `json:"runs"` // how often its op runs in a step
	Reason string  `json:"reason"`
	Rule   string  `json:"rule,omitempty"`    // what a line of the policy says of it, and which
	AtPeak bool    `json:"at_peak,omitempty"` // in memory at the peak
	// RecomputeNs: for a saved value what computing it again for its last reader would take; for a
	// recomputed one what its further runs take.
	RecomputeNs int64 `json:"recompute_ns,omitempty"`
	// Spans are the stretches of the schedule, first and last op, in which it is in memory.
	Spans [][2]int `json:"spans,omitempty"`
}

// explainer holds what the reasons are made of.
type explainer struct {
	p       *planned
	limit   int64
	names   map[*ir.Value]string
	whole   map[*ir.Value]string // names of the values before planning
	op      map[*ir.Op]int       // original op → index of the planner's problem
	value   map[*ir.Value]int    // original value → index of the planner's problem
	last    map[*ir.Value]int    // last use, through views; len(ops) for results
	spans   map[*ir.Value][][2]int
	live    []int64 // frame bytes by position
	peak    int
	again   bool    // something is run again
	dearest float64 // nanoseconds per byte of the dearest value that is run again
	results map[*ir.Value]bool

	byOffset map[int64][]int // stretches of the frame
}

// explain says what became of every byte of p, which was planned for limit bytes.
func explain(p *planned, limit int64) *Explanation {
	x := newExplainer(p, limit)
	body := p.applied.Func.Body
	e := &Explanation{Format: ExplanationFormat, Ops: make([]OpReport, len(body.Ops))}
	clones := map[*ir.Op]int{}
	for pos, op := range body.Ops {
		r := OpReport{ID: -1, Op: opLabel(op), Layer: op.Loc.Layer, Source: source(op.Loc), Bytes: x.live[pos]}
		first := op
		if op.Remat != nil {
			first = op.Remat
			clones[first]++
			r.Clone = clones[first]
		}
		if i, ok := x.op[first]; ok {
			r.ID, r.Ns = p.problem.Number[i], p.problem.Problem.Ops[i].Cost
		}
		e.Ops[pos] = r
	}
	index := x.values(e)
	for _, s := range p.frame.Stretches {
		r := StretchReport{Value: -1, Start: s.Start, End: s.End, Offset: s.Offset, Bytes: s.Bytes}
		if s.Value != nil {
			r.Value = index[original(s.Value)]
		}
		e.Stretches = append(e.Stretches, r)
	}
	e.Memory = Memory{StepResidentBytes: p.resident, PeakBytes: x.live[x.peak], PeakPosition: x.peak, ArenaBytes: p.arena,
		UnusedBytes: p.arena - p.resident - x.live[x.peak], PeakOp: "end of the step"}
	if x.peak < len(e.Ops) {
		e.Memory.PeakOp, e.Memory.PeakLayer = e.Ops[x.peak].Op, e.Ops[x.peak].Layer
	}
	return e
}

func newExplainer(p *planned, limit int64) *explainer {
	x := &explainer{p: p, limit: limit, names: map[*ir.Value]string{}, op: map[*ir.Op]int{}, value: map[*ir.Value]int{},
		spans: map[*ir.Value][][2]int{}, results: map[*ir.Value]bool{}}
	for i, op := range p.problem.Ops {
		x.op[op] = i
	}
	x.whole = valueNames(p.base.Problem)
	byID := map[int]string{}
	for v, name := range x.whole {
		byID[v.ID] = name
	}
	for _, v := range p.problem.Values {
		name, ok := byID[p.ids[v]]
		if !ok { // a row statistic that readers of a fused value need
			name = fmt.Sprintf("%s.row%d", opLabel(v.Op), v.Index)
		}
		x.names[v] = name
	}
	for i, v := range p.problem.Values {
		x.value[v] = i
	}
	body := p.applied.Func.Body
	x.last = lastReads(body)
	for _, v := range body.Results {
		x.results[original(v)] = true
	}
	for pos, op := range body.Ops {
		for _, v := range op.Results {
			x.spans[original(v)] = append(x.spans[original(v)], [2]int{pos, max(pos, x.last[v])})
		}
	}
	x.byOffset = map[int64][]int{}
	for i, s := range p.frame.Stretches {
		x.byOffset[s.Offset] = append(x.byOffset[s.Offset], i)
	}
	x.live, x.peak = p.profile()
	for _, op := range body.Ops {
		if op.Remat == nil || lower.IsView(op) {
			continue
		}
		x.again = true
		for _, v := range op.Remat.Results {
			x.dearest = max(x.dearest, float64(x.extra(v))/float64(max(1, v.Type.Bytes())))
		}
	}
	return x
}

// extra is what the further runs of v's op take, in ns.
func (x *explainer) extra(v *ir.Value) int64 {
	return int64(len(x.spans[v])-1) * x.p.problem.Problem.Ops[x.op[v.Op]].Cost
}

// original is the value of which v is a clone, or v.
func original(v *ir.Value) *ir.Value {
	if v.Op != nil && v.Op.Remat != nil {
		return v.Op.Remat.Results[v.Index]
	}
	return v
}

// lastReads is the position at which each value is read for the last time, through views;
// the number of ops for results.
func lastReads(b *ir.Block) map[*ir.Value]int {
	last := map[*ir.Value]int{}
	for _, v := range b.Results {
		last[v] = len(b.Ops)
	}
	for pos := len(b.Ops) - 1; pos >= 0; pos-- {
		op := b.Ops[pos]
		for i, v := range op.Operands {
			last[v] = max(last[v], pos)
			if lower.IsView(op) {
				last[v] = max(last[v], last[op.Results[i]])
			}
		}
	}
	return last
}

// profile is how much of the frame is in use at each position, and the first at which most is.
func (p *planned) profile() (live []int64, peak int) {
	n := len(p.applied.Func.Body.Ops) + 1
	live = make([]int64, n+1)
	for _, s := range p.frame.Stretches {
		live[s.Start] += s.Bytes
		live[min(s.End, n-1)+1] -= s.Bytes
	}
	live = live[:n]
	for i := 1; i < n; i++ {
		live[i] += live[i-1]
		if live[i] > live[peak] {
			peak = i
		}
	}
	return live, peak
}

// opLabel is layer, provenance and kind; the source stands by itself.
func opLabel(op *ir.Op) string {
	l := op.Loc
	l.File = ""
	return l.String() + ":" + remat.Kind(op)
}

func source(l ir.Loc) string {
	if l.File == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", l.File, l.Line)
}

// valueNames gives every value of a problem a name that does not depend on the plan: a parameter's own, the
// one that the model gave it, its result's, or that of its op. Values that would share one are numbered in program order.
func valueNames(pr *remat.Problem) map[*ir.Value]string {
	names := map[*ir.Value]string{}
	results := map[*ir.Value]string{}
	params := pr.Func.ParamsByName()
	for i, name := range pr.Func.Results {
		if params[name] == nil {
			results[original(pr.Func.Body.Results[i])] = name
		}
	}
	count := map[string]int{}
	for _, v := range pr.Values {
		if v.Op == nil {
			names[v] = v.Name
			continue
		}
		name := opLabel(v.Op)
		if result := results[v]; result != "" {
			name = result
		} else if given := v.Attrs.Str("name"); given != "" {
			name = v.Op.Loc.Layer + ":" + given
		} else if v.Index > 0 {
			name = fmt.Sprintf("%s.%d", name, v.Index)
		}
		count[name]++
		if n := count[name]; n > 1 {
			name = fmt.Sprintf("%s#%d", name, n)
		}
		names[v] = name
	}
	return names
}

// values fills e.Values, parameters first, then in the order in which they are first made. It returns
// the index of each.
func (x *explainer) values(e *Explanation) map[*ir.Value]int {
	f := x.p.applied.Func
	index := map[*ir.Value]int{}
	add := func(v *ir.Value, r ValueReport) {
		r.Name, r.ID, r.Type, r.DType, r.Shape = x.names[v], v.Name, v.Type.String(), v.Type.DType.String(), v.Type.Shape
		index[v] = len(e.Values)
		e.Values = append(e.Values, r)
	}
	for _, v := range f.Body.Params {
		add(v, ValueReport{Layer: layerOf(v), Op: v.Role(), Bytes: v.Type.Bytes(), Fate: FateResident, Reason: residentReason(v), AtPeak: true})
	}
	for _, op := range f.Body.Ops {
		if op.Remat != nil {
			continue
		}
		for _, v := range op.Results {
			r := ValueReport{Layer: op.Loc.Layer, Op: opLabel(op), Source: source(op.Loc), Bytes: v.Type.Bytes(), Runs: len(x.spans[v]), Spans: x.spans[v]}
			x.judge(v, &r)
			if r.Fate != FateConstant && x.p.frame.Homes[v].Param == nil {
				for _, s := range r.Spans {
					r.AtPeak = r.AtPeak || s[0] <= x.peak && x.peak <= s[1]
				}
			}
			add(v, r)
		}
	}
	there := map[int]bool{}
	for _, id := range x.p.ids {
		there[id] = true
	}
	readers := x.p.fusedReaders()
	runs := map[int]int{} // by op
	for _, r := range x.p.applied.Runs {
		runs[r.ID]++
	}
	for i, v := range x.p.base.Values {
		if there[v.ID] || v.Op == nil {
			continue
		}
		n := 0
		for _, op := range readers[v.ID] {
			n += runs[op.ID]
		}
		rule := x.p.rules.Reason(i)
		e.Values = append(e.Values, ValueReport{Name: x.whole[v], Layer: v.Op.Loc.Layer, Op: opLabel(v.Op), Source: source(v.Op.Loc), Type: v.Type.String(),
			DType: v.Type.DType.String(), Shape: v.Type.Shape, Bytes: v.Type.Bytes(), Runs: n, Fate: FateFused, Rule: rule, Reason: whyFused(v, readers[v.ID], rule)})
	}
	return index
}

// whyFused is the reason of a value that is not in memory at all. A view of such a value has no readers of
// its own.
func whyFused(v *ir.Value, readers []*ir.Op, rule string) string {
	if len(readers) == 0 {
		return "another shape of a value that its readers compute for themselves"
	}
	var names []string
	for _, op := range readers {
		names = append(names, opLabel(op))
	}
	more := ""
	if n := len(names) - 4; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
		names = names[:4]
	}
	why := "which takes less time for its " + Bytes(v.Type.Bytes()) + " than keeping or making it again"
	if rule != "" {
		why = "computed again for each (" + rule + ")"
	}
	return fmt.Sprintf("never in memory: computed while it is read by %s%s, %s", strings.Join(names, ", "), more, why)
}

func residentReason(v *ir.Value) string {
	switch v.Role() {
	case ir.RoleParam:
		return "a parameter: in memory from step to step"
	case ir.RoleOpt:
		return "optimizer state: in memory from step to step"
	case ir.RoleBuffer:
		return "state: in memory from step to step"
	}
	return "an input of the step"
}

// judge sets fate, reason and the time of recomputation.
func (x *explainer) judge(v *ir.Value, r *ValueReport) {
	op, home := v.Op, x.p.frame.Homes[v]
	switch {
	case lower.IsConstant(op):
		r.Fate, r.Reason, r.Spans = FateConstant, "a constant of the model: it stands in the program, outside the arena", nil
		return
	case lower.IsView(op):
		r.Fate, r.Reason = FateView, "another shape of "+x.names[op.Operands[v.Index]]
		if o := original(op.Operands[v.Index]); x.names[o] != "" {
			r.Reason = "another shape of " + x.names[o]
		}
		return
	case home.Param != nil:
		r.Fate, r.Reason = FateInPlace, fmt.Sprintf("the new value of %s %s, written over the old one", home.Param.Role(), home.Param.Name)
		return
	}
	pos, last := r.Spans[0][0], r.Spans[0][1]
	r.Rule = x.rule(v)
	if pin, once := x.p.problem.Pins[op]; once {
		r.Fate, r.Reason = FatePinned, pin.Why
		if last > pos+1 {
			r.Reason += fmt.Sprintf("; kept from op %d for %s", pos, x.at(last))
		}
		return
	}
	if r.Runs > 1 {
		r.Fate, r.RecomputeNs = FateRecomputed, x.extra(v)
		r.Reason = x.whyAgain(v, r)
		return
	}
	in := x.tookOver(v, pos)
	switch {
	case x.results[v]:
		r.Fate, r.Reason = FateSaved, "a result of the step: in memory to its end"
	case last <= pos+1 && in != "":
		r.Fate, r.Reason = FateInPlace, "written over "+in+", which nothing reads any more"
	case last <= pos+1:
		r.Fate, r.Reason = FateLocal, "read right after it is made"
	default:
		r.Fate = FateSaved
		r.Reason = x.whyKept(v, r)
		if in != "" {
			r.Reason += "; written over " + in
		}
	}
}

// rule is what a line of the policy says of v, "" where none decides.
func (x *explainer) rule(v *ir.Value) string {
	fate := x.p.problem.Problem.Values[x.value[v]].Policy
	if at, ok := x.p.base.index[x.p.ids[v]]; ok {
		return x.p.rules.Reason(at)
	}
	if fate == planner.PolicyNone {
		return ""
	}
	for _, id := range x.p.variant.served()[x.p.applied.Runs[v.Op].ID] { // a row statistic shares the fate of what it is for
		if at := x.p.base.index[id]; x.p.base.Problem.Problem.Values[at].Policy == fate {
			return x.p.rules.Reason(at)
		}
	}
	return ""
}

// at names an op of the schedule by its position.
func (x *explainer) at(pos int) string {
	ops := x.p.applied.Func.Body.Ops
	if pos >= len(ops) {
		return "the end of the step"
	}
	return fmt.Sprintf("op %d (%s)", pos, opLabel(ops[pos]))
}

// tookOver names the operand in whose memory v is written, "" where it has its own.
func (x *explainer) tookOver(v *ir.Value, pos int) string {
	s := x.stretch(v, pos)
	if s == nil || s.Start == pos {
		return ""
	}
	for _, o := range v.Op.Operands {
		if x.stretch(o, pos) == s {
			return x.names[original(o)]
		}
	}
	return ""
}

// stretch is the memory in which v is at a position, nil where that is outside the frame.
func (x *explainer) stretch(v *ir.Value, pos int) *buffer.Stretch {
	home := x.p.frame.Homes[v]
	if home.Param != nil || home.Const != nil {
		return nil
	}
	for _, i := range x.byOffset[home.Offset] {
		if s := &x.p.frame.Stretches[i]; s.Value != nil && s.Start <= pos && pos <= s.End {
			return s
		}
	}
	return nil
}

// whyAgain is the reason of a value that is run again: what keeping it would do.
func (x *explainer) whyAgain(v *ir.Value, r *ValueReport) string {
	gap, most := 0, -1 // the stretch in which it is absent that is fullest, and where
	for k := 1; k < len(r.Spans); k++ {
		for pos := r.Spans[k-1][1] + 1; pos < r.Spans[k][0]; pos++ {
			if most < 0 || x.live[pos] > x.live[most] {
				gap, most = k, pos
			}
		}
	}
	runs := fmt.Sprintf("run %d times, %s more", r.Runs, Time(r.RecomputeNs))
	if r.Rule != "" {
		runs += " (" + r.Rule + ")"
	}
	if most < 0 { // made again while it was still there: it moved
		return runs + ": the other run takes no memory that would be needed"
	}
	from, to := r.Spans[gap-1][1], r.Spans[gap][0]
	since := fmt.Sprintf("%s: kept from op %d until it is made again at op %d for %s, its %s would", runs, from, to, x.at(r.Spans[gap][1]), Bytes(r.Bytes))
	total := x.p.resident + x.live[most] + remat.RoundUp(r.Bytes)
	switch {
	case x.live[most] == x.live[x.peak]:
		return fmt.Sprintf("%s add to the peak at %s", since, x.at(most))
	case total > x.limit:
		return fmt.Sprintf("%s bring %s to %s, over the budget of %s", since, x.at(most), Bytes(total), Bytes(x.limit))
	}
	return fmt.Sprintf("%s still fit (at %s with %s to spare), but the search found no cheaper plan", since, x.at(most), Bytes(x.limit-total))
}

// whyKept is the reason of a value that is kept: who keeps it, and why that is better than running it again.
func (x *explainer) whyKept(v *ir.Value, r *ValueReport) string {
	pos, last := r.Spans[0][0], r.Spans[0][1]
	keeps := fmt.Sprintf("kept from op %d for %s", pos, x.at(last))
	if x.p.problem.Problem.Values[x.value[v]].Policy == planner.MustSave {
		return keeps + ": " + r.Rule
	}
	if r.Rule != "" {
		keeps += " (" + r.Rule + ")"
	}
	if !x.again {
		return keeps + ": everything fits"
	}
	if x.p.rules != nil && x.limit == x.p.arena {
		return keeps + ": no rule of the policy asks to compute it again"
	}
	ns, ops, wall := x.onceMore(v, last)
	if wall != nil {
		return fmt.Sprintf("%s: it can't be computed again, for it rests on %s, which is pinned", keeps, x.names[wall])
	}
	r.RecomputeNs = ns
	cost := fmt.Sprintf("computing it again there would take %s", Time(ns))
	switch {
	case ops == farBack:
		cost = fmt.Sprintf("computing it again there would take more than %s (the last %d ops of a long chain)", Time(ns), ops)
	case ops > 1:
		cost += fmt.Sprintf(" (%d ops)", ops)
	}
	full := pos // the fullest moment of its life
	for i := pos; i <= min(last, len(x.live)-1); i++ {
		if x.live[i] > x.live[full] {
			full = i
		}
	}
	switch {
	case x.live[full] < x.live[x.peak]:
		return fmt.Sprintf("%s: even at the fullest moment of that time, op %d, memory is %s below the peak", keeps, full, Bytes(x.live[x.peak]-x.live[full]))
	case float64(ns) >= x.dearest*float64(r.Bytes):
		return fmt.Sprintf("%s: %s, dearer for its bytes than anything that was given up", keeps, cost)
	}
	return fmt.Sprintf("%s: %s, and what was given up already brings the peak within the budget", keeps, cost)
}

// farBack is how many ops onceMore looks at: for every value of a long chain, all of it would be too many.
const farBack = 200

// onceMore is what one more run of v for a reader at position at would take: the ops, and their time, that are
// needed from what is in memory there. wall is a pinned value that would be in the way.
func (x *explainer) onceMore(v *ir.Value, at int) (ns int64, ops int, wall *ir.Value) {
	seen := map[*ir.Op]bool{}
	stack := []*ir.Op{v.Op}
	for len(stack) > 0 {
		op := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[op] {
			continue
		}
		seen[op] = true
		i, ok := x.op[op]
		if !ok { // a constant
			continue
		}
		po := &x.p.problem.Problem.Ops[i]
		if po.RunsOnce() {
			return 0, 0, op.Results[0]
		}
		if !lower.IsView(op) {
			ns += po.Cost
			if ops++; ops == farBack {
				return ns, ops, nil
			}
		}
		for _, u := range po.Inputs {
			if o := x.p.problem.Values[u]; o.Op != nil && !x.present(o, at) {
				stack = append(stack, o.Op)
			}
		}
	}
	return ns, ops, nil
}

// present: v is in memory at position at.
func (x *explainer) present(v *ir.Value, at int) bool {
	for _, s := range x.spans[v] {
		if s[0] < at && at <= s[1] {
			return true
		}
	}
	return false
}

// Time writes nanoseconds for a person.
func Time(ns int64) string {
	switch {
	case ns >= 1e9:
		return fmt.Sprintf("%.2f s", float64(ns)/1e9)
	case ns >= 1e6:
		return fmt.Sprintf("%.2f ms", float64(ns)/1e6)
	case ns >= 1e3:
		return fmt.Sprintf("%.1f µs", float64(ns)/1e3)
	}
	return fmt.Sprintf("%d ns", ns)
}

// SortValues orders reports by bytes, largest first.
func SortValues(vs []ValueReport) {
	slices.SortStableFunc(vs, func(a, b ValueReport) int { return cmp.Compare(b.Bytes, a.Bytes) })
}
