package planner

import (
	"fmt"
	"math"
)

// This file is the judge. It shares no code with the solvers, not even the
// computation of aliases, and prefers plain code over fast code.

// Report is what a replay of a plan measured.
type Report struct {
	PeakBytes   int64
	PeakPos     int     // position at which the peak is first reached
	Cost        int64   // of every instance, and Stall
	Stall       int64   // time that ops wait for transfers
	HostBytes   int64   // most host memory held at a time
	MovedBytes  int64   // that transfers take to the host
	BaseCost    int64   // of every op once
	Recomputed  int     // instances beyond the first
	LimitBytes  []int64 // by limit: what is kept of its values across gates
	LiveAtPeak  []int   // the first value of each live storage at PeakPos, largest first
	MemoryBytes []int64 // by position
}

// Violation is the first rule that a plan breaks. Position, Op and Value are
// indices, or -1 where none applies.
type Violation struct {
	Rule     Rule
	Position int
	Op       int
	Value    int
	Msg      string
}

// Rule names a rule of Check.
type Rule string

// The rules, in the order in which Check applies them at a position.
const (
	RuleIndex     Rule = "index"     // every entry is an op of the problem
	RuleOnce      Rule = "once"      // ops with effects, unknown or unfixed order, decisions and must-save outputs run once
	RuleInput     Rule = "input"     // every input has been computed before it is read
	RuleOverwrite Rule = "overwrite" // nothing reads a value after it was overwritten
	RuleEffect    Rule = "effect"    // effects of one kind keep the order of the problem
	RuleMissing   Rule = "missing"   // every op runs
	RuleOutput    Rule = "output"    // outputs are intact at the end
	RulePolicy    Rule = "policy"    // must-recompute values are recomputed, must-offload values offloaded
	RuleLimit     Rule = "limit"     // of a limit's values no more is kept across gates than it allows
	RuleTransfer  Rule = "transfer"  // transfers move what is not in use, over a link that exists, into host memory that exists
	RuleOverflow  Rule = "overflow"  // cost and memory fit in 63 bits
	RuleBudget    Rule = "budget"    // the peak is within the budget
	RuleClaim     Rule = "claim"     // peak, cost and arena are what the plan says
	RuleLayout    Rule = "layout"    // placements cover all memory in use and do not overlap
)

func (v *Violation) Error() string { return "planner: " + v.Msg }

// storageInstance is memory between one allocation and its last use.
type storageInstance struct {
	value    int // first value in it
	bytes    int64
	start    int   // position of the allocating op, -1 for residents
	last     int   // last position at which it is used
	uses     []int // positions at which it is used, ascending; of residents not kept
	away     []Transfer
	mergedTo int // instance that took its memory over, or -1
	takenAt  int // position from which this instance lives in another's memory, or -1
}

// Check replays plan.Order on p and returns what it measured. The error is a
// *Violation, or what Validate says about p. budget < 0 means no limit.
//
// Memory at a position is: every resident storage, every other storage that
// was allocated at or before it and is used at or after it, and the workspace
// of the op that runs. An op's inputs and outputs are both live while it runs,
// unless it writes in place: an optional in-place output shares its input's
// memory if the storages have equal size, the input's is not resident, is read
// for the last time right there, and holds no output of the problem. Memory is
// released right after its last use. A storage that holds an output lives to
// the end. Views use the storage of what they view, and keep it alive.
//
// What the plan says of its cost, peak, base cost, overhead and gap must be
// what the replay measures, unless it is zero; its budget and arena must hold
// the peak, and its bound must not be above its cost.
func Check(p *Problem, plan *Plan, budget int64) (Report, error) {
	if err := p.Validate(); err != nil {
		return Report{}, err
	}
	if plan == nil {
		return Report{}, &Violation{Rule: RuleMissing, Position: -1, Op: -1, Value: -1, Msg: "there is no plan"}
	}
	r := newReplay(p, plan.Order)
	if v := r.run(); v != nil {
		return Report{}, v
	}
	if v := r.transfers(plan.Transfers); v != nil {
		return Report{}, v
	}
	if v := r.policies(); v != nil {
		return Report{}, v
	}
	rep, v := r.measure(plan.Transfers)
	if v != nil {
		return Report{}, v
	}
	if budget >= 0 && rep.PeakBytes > budget {
		worst := -1
		if len(rep.LiveAtPeak) > 0 {
			worst = rep.LiveAtPeak[0]
		}
		op := -1
		if rep.PeakPos < len(plan.Order) {
			op = plan.Order[rep.PeakPos]
		}
		return rep, r.violation(RuleBudget, rep.PeakPos, op, worst, "the peak of %d bytes exceeds the budget of %d bytes", rep.PeakBytes, budget)
	}
	if plan.Cost != 0 && plan.Cost != rep.Cost {
		return rep, r.violation(RuleClaim, -1, -1, -1, "the plan claims cost %d, the replay measures %d", plan.Cost, rep.Cost)
	}
	if plan.PeakBytes != 0 && plan.PeakBytes != rep.PeakBytes {
		return rep, r.violation(RuleClaim, rep.PeakPos, -1, -1, "the plan claims a peak of %d bytes, the replay measures %d", plan.PeakBytes, rep.PeakBytes)
	}
	if msg := falseClaim(plan, rep); msg != "" {
		return rep, r.violation(RuleClaim, -1, -1, -1, "%s", msg)
	}
	if v := r.checkPlacements(plan, budget); v != nil {
		return rep, v
	}
	return rep, nil
}

// falseClaim says which other number of a plan can't be; zeros claim nothing. What a bound is worth
// can't be seen from a plan, but one above the plan's own cost is none.
func falseClaim(plan *Plan, rep Report) string {
	off := func(claim float64, less int64) bool {
		return claim != 0 && rep.BaseCost > 0 && !(math.Abs(claim-float64(rep.Cost-less)/float64(rep.BaseCost)) <= 1e-6)
	}
	switch {
	case plan.BaseCost != 0 && plan.BaseCost != rep.BaseCost:
		return fmt.Sprintf("the plan claims a cost without recomputation of %d, the replay measures %d", plan.BaseCost, rep.BaseCost)
	case plan.LowerBound > rep.Cost:
		return fmt.Sprintf("the plan claims that no plan costs less than %d, and costs %d itself", plan.LowerBound, rep.Cost)
	case plan.BudgetBytes < 0:
		return fmt.Sprintf("the plan claims a budget of %d bytes", plan.BudgetBytes)
	case plan.BudgetBytes > 0 && plan.BudgetBytes < rep.PeakBytes:
		return fmt.Sprintf("the plan claims a budget of %d bytes, the replay measures a peak of %d", plan.BudgetBytes, rep.PeakBytes)
	case plan.ArenaBytes != 0 && plan.ArenaBytes < rep.PeakBytes:
		return fmt.Sprintf("the plan claims an arena of %d bytes, the replay measures a peak of %d", plan.ArenaBytes, rep.PeakBytes)
	case off(plan.Overhead, rep.BaseCost):
		return fmt.Sprintf("the plan claims an overhead of %g, the replay measures %g", plan.Overhead, float64(rep.Cost-rep.BaseCost)/float64(rep.BaseCost))
	case plan.LowerBound != 0 && off(plan.Gap, plan.LowerBound):
		return fmt.Sprintf("the plan claims a gap of %g between its cost of %d and its bound of %d", plan.Gap, rep.Cost, plan.LowerBound)
	}
	return ""
}

type replay struct {
	p     *Problem
	order []int

	rootOf []int   // by value: representative of its storage
	inside [][]int // by representative: the values of its storage
	bytes  []int64 // by representative
	isRes  []bool  // by representative

	inst  []storageInstance
	now   []int // by value: storage instance of its latest instance, or -1
	gone  []int // by value: position at which it was overwritten, or -1
	runs  []int // by op
	reuse []reuseSite
	moved map[int]bool // by representative: a transfer moves it
}

// reuseSite is an op instance that may write in place.
type reuseSite struct{ pos, in, out int }

func newReplay(p *Problem, order []int) *replay {
	n := len(p.Values)
	r := &replay{p: p, order: order, inst: make([]storageInstance, 0, n+len(order)), rootOf: make([]int, n), inside: make([][]int, n), bytes: make([]int64, n), isRes: make([]bool, n),
		now: make([]int, n), gone: make([]int, n), runs: make([]int, len(p.Ops))}
	// Storages by naming each after its smallest value, until stable.
	byID := make(map[int]int)
	for v := range p.Values {
		r.rootOf[v] = v
		if id := p.Values[v].Storage; id != 0 {
			if w, ok := byID[id]; ok {
				r.rootOf[v] = w
			} else {
				byID[id] = v
			}
		}
	}
	for v := range p.Values {
		if p.Values[v].Resident {
			r.isRes[r.rootOf[v]] = true
		}
	}
	for again := true; again; {
		again = false
		for _, o := range p.Ops {
			for _, pr := range o.InPlace {
				from, to := r.rootOf[pr[0]], r.rootOf[pr[1]]
				if from != to && r.isRes[from] && p.Values[pr[1]].Storage == 0 {
					// pr[1] has a storage of its own, so it is alone there.
					r.rootOf[pr[1]] = from
					again = true
				}
			}
		}
	}
	for v := range p.Values {
		root := r.rootOf[v]
		r.inside[root] = append(r.inside[root], v)
		if end := p.Values[v].Offset + p.Values[v].Bytes; end > r.bytes[root] {
			r.bytes[root] = end
		}
		r.now[v], r.gone[v] = -1, -1
	}
	resident := make(map[int]int)
	for v := range p.Values {
		if !p.Values[v].Resident {
			continue
		}
		root := r.rootOf[v]
		k, ok := resident[root]
		if !ok {
			k = len(r.inst)
			resident[root] = k
			r.inst = append(r.inst, storageInstance{value: v, bytes: r.bytes[root], start: -1, last: len(order) - 1, mergedTo: -1, takenAt: -1})
		}
		r.now[v] = k
	}
	return r
}

func (r *replay) violation(rule Rule, pos, op, value int, format string, args ...any) *Violation {
	msg := string(rule) + ": " + fmt.Sprintf(format, args...)
	if pos >= 0 {
		msg += fmt.Sprintf(" (position %d", pos)
		if op >= 0 {
			msg += ", " + r.p.opName(op)
		}
		if value >= 0 {
			msg += ", " + r.p.valueName(value)
		}
		msg += ")"
	}
	return &Violation{Rule: rule, Position: pos, Op: op, Value: value, Msg: msg}
}

// onlyOnce says why op i may run only once, or "".
func (r *replay) onlyOnce(i int) string {
	o := &r.p.Ops[i]
	switch {
	case o.Effect != EffectNone:
		return "its effect is " + o.Effect.String()
	case o.Det == DetUnknown || o.Det == DetTol || o.Det == DetDecides:
		return "its determinism is " + o.Det.String()
	}
	for _, v := range o.Outputs {
		if r.p.Values[v].Policy == MustSave {
			return r.p.valueName(v) + " must be saved"
		}
	}
	return ""
}

// run follows the order and fills in instances and their last uses.
func (r *replay) run() *Violation {
	p := r.p
	for pos, i := range r.order {
		if i < 0 || i >= len(p.Ops) {
			return r.violation(RuleIndex, pos, -1, -1, "entry %d of the order is op %d; there are ops 0 to %d", pos, i, len(p.Ops)-1)
		}
		o := &p.Ops[i]
		r.runs[i]++
		if r.runs[i] > 1 {
			if why := r.onlyOnce(i); why != "" {
				return r.violation(RuleOnce, pos, i, -1, "%s runs a second time, but %s", p.opName(i), why)
			}
		}
		for _, v := range o.Inputs {
			if r.gone[v] >= 0 {
				return r.violation(RuleOverwrite, pos, i, v, "%s reads %s, which was overwritten at position %d", p.opName(i), p.valueName(v), r.gone[v])
			}
			if r.now[v] < 0 {
				return r.violation(RuleInput, pos, i, v, "%s reads %s before it is computed", p.opName(i), p.valueName(v))
			}
			r.use(r.now[v], pos)
		}
		r.produce(pos, i)
	}
	if v := r.effectsInOrder(); v != nil {
		return v
	}
	for i := range p.Ops {
		if r.runs[i] == 0 {
			return r.violation(RuleMissing, -1, i, -1, "%s never runs", p.opName(i))
		}
	}
	for v := range p.Values {
		if p.Values[v].Output {
			if r.gone[v] >= 0 {
				return r.violation(RuleOutput, r.gone[v], r.order[r.gone[v]], v, "output %s is overwritten", p.valueName(v))
			}
			r.inst[r.now[v]].last = len(r.order) - 1
		}
	}
	return nil
}

// produce gives each output of op i at pos its storage instance.
func (r *replay) produce(pos, i int) {
	p := r.p
	o := &p.Ops[i]
	place := make([]int, len(o.Outputs))
	for k, out := range o.Outputs {
		root := r.rootOf[out]
		place[k] = -1
		for _, in := range o.Inputs {
			if r.rootOf[in] == root {
				place[k] = r.now[in]
				break
			}
		}
		for j := 0; j < k && place[k] < 0; j++ { // opened by this op for another output
			if r.rootOf[o.Outputs[j]] == root {
				place[k] = place[j]
			}
		}
		if place[k] < 0 {
			place[k] = len(r.inst)
			r.inst = append(r.inst, storageInstance{value: out, bytes: r.bytes[root], start: pos, last: pos, mergedTo: -1, takenAt: -1})
		}
	}
	// Overwriting pairs destroy what else is visible in those bytes.
	for _, pr := range o.InPlace {
		in, out := pr[0], pr[1]
		if r.rootOf[in] != r.rootOf[out] {
			r.reuse = append(r.reuse, reuseSite{pos: pos, in: r.now[in], out: r.instanceOf(o, place, out)})
			continue
		}
		where := r.now[in]
		lo, hi := p.Values[out].Offset, p.Values[out].Offset+p.Values[out].Bytes
		for _, v := range r.inside[r.rootOf[in]] {
			if r.now[v] != where || v == out {
				continue
			}
			if v == in || (p.Values[v].Offset < hi && lo < p.Values[v].Offset+p.Values[v].Bytes) {
				r.gone[v] = pos
			}
		}
	}
	for k, out := range o.Outputs {
		r.now[out] = place[k]
		r.gone[out] = -1
		r.use(place[k], pos)
	}
}

// use notes that instance k is in use at pos.
func (r *replay) use(k, pos int) {
	s := &r.inst[k]
	if s.last < pos {
		s.last = pos
	}
	if n := len(s.uses); s.start >= 0 && (n == 0 || s.uses[n-1] != pos) {
		s.uses = append(s.uses, pos)
	}
}

func (r *replay) instanceOf(o *Op, place []int, out int) int {
	for k, v := range o.Outputs {
		if v == out {
			return place[k]
		}
	}
	return -1
}

// effectsInOrder checks that collectives, host callbacks and hidden state are
// met in the order of the problem. An effect with an overwriting in-place pair
// is state that the problem shows; overwriting already orders it.
func (r *replay) effectsInOrder() *Violation {
	p := r.p
	kind := func(i int) int {
		o := &p.Ops[i]
		switch o.Effect {
		case EffectComm:
			return 1
		case EffectHost:
			return 2
		case EffectReads, EffectWrites:
			for _, pr := range o.InPlace {
				if r.rootOf[pr[0]] == r.rootOf[pr[1]] {
					return 0
				}
			}
			return 3
		}
		return 0
	}
	rank := make([]int, len(p.Ops))
	for k := range p.Ops {
		rank[k] = k
	}
	for k, i := range p.Order {
		rank[i] = k
	}
	var latest [4]int
	for k := range latest {
		latest[k] = -1
	}
	for pos, i := range r.order {
		k := kind(i)
		if k == 0 {
			continue
		}
		if latest[k] >= 0 && rank[latest[k]] > rank[i] {
			return r.violation(RuleEffect, pos, i, -1, "%s runs after %s, the problem has them the other way round", p.opName(i), p.opName(latest[k]))
		}
		latest[k] = i
	}
	return nil
}

func (r *replay) policies() *Violation {
	p := r.p
	uses := make([]int, len(p.Values))
	for i := range p.Ops {
		seen := make(map[int]bool)
		for _, v := range p.Ops[i].Inputs {
			if !seen[v] {
				seen[v] = true
				uses[v]++
			}
		}
	}
	for i := range p.Ops {
		for _, v := range p.Ops[i].Outputs {
			if p.Values[v].Policy == MustOffload && uses[v] > 1 && !r.moved[r.rootOf[v]] {
				return r.violation(RulePolicy, -1, i, v, "%s must be offloaded, and the plan does not", p.valueName(v))
			}
			if len(p.Gates) == 0 && p.Values[v].Policy == MustRecompute && uses[v] > 1 && r.runs[i] < 2 {
				return r.violation(RulePolicy, -1, i, v, "%s must be recomputed, but %s runs once", p.valueName(v), p.opName(i))
			}
		}
	}
	if v := r.recomputed(); v != nil {
		return v
	}
	return r.withinLimits()
}

// transfers checks that each move is of memory that waits between two uses, and notes it there.
func (r *replay) transfers(moves []Transfer) *Violation {
	r.moved = make(map[int]bool)
	type key struct{ value, start int }
	at := make(map[key]int)
	for k := range r.inst {
		if s := &r.inst[k]; s.start >= 0 {
			at[key{s.value, s.start}] = k
		}
	}
	for k, t := range moves {
		if r.p.Offload == nil {
			return r.violation(RuleTransfer, t.Out, -1, -1, "transfer %d has no link to use: the problem has no offload", k)
		}
		id, ok := at[key{t.Value, t.Start}]
		if !ok {
			return r.violation(RuleTransfer, t.Start, -1, -1, "transfer %d moves value %d opened at position %d, which the plan does not have", k, t.Value, t.Start)
		}
		if k > 0 && t.Out < moves[k-1].Out {
			return r.violation(RuleTransfer, t.Out, -1, t.Value, "transfer %d comes before transfer %d", k, k-1)
		}
		s := &r.inst[id]
		next := -1
		for j, pos := range s.uses {
			if pos == t.Out && j+1 < len(s.uses) {
				next = s.uses[j+1]
			}
		}
		if next < 0 || next != t.Use {
			return r.violation(RuleTransfer, t.Out, -1, t.Value, "transfer %d: positions %d and %d are not two uses of %s in a row", k, t.Out, t.Use, r.p.valueName(t.Value))
		}
		if t.Out >= t.Free || t.Free > t.In || t.In > t.Use {
			return r.violation(RuleTransfer, t.Out, -1, t.Value, "transfer %d: out %d, free %d, in %d, use %d are not in order", k, t.Out, t.Free, t.In, t.Use)
		}
		if n := len(s.away); n > 0 && t.Out < s.away[n-1].Use {
			return r.violation(RuleTransfer, t.Out, -1, t.Value, "transfer %d moves %s, which is away", k, r.p.valueName(t.Value))
		}
		s.away = append(s.away, t)
		r.moved[r.rootOf[t.Value]] = true
	}
	return nil
}

// awayAt reports whether the instance has no device memory at pos.
func (s *storageInstance) awayAt(pos int) bool {
	for _, t := range s.away {
		if t.Free <= pos && pos < t.In {
			return true
		}
	}
	return false
}

// wait follows the clock through ops and copies. Each direction of the link does one copy at a
// time, in the order in which they are asked for.
func (r *replay) wait(moves []Transfer, rep *Report) *Violation {
	if len(moves) == 0 {
		return nil
	}
	link := r.p.Offload
	n := len(r.order)
	free, back, use, out := make([][]int, n), make([][]int, n), make([][]int, n), make([][]int, n)
	host := make([]int64, n+2)
	size := make([]int64, len(moves))
	for k, t := range moves {
		free[t.Free], back[t.In] = append(free[t.Free], k), append(back[t.In], k)
		use[t.Use], out[t.Out] = append(use[t.Use], k), append(out[t.Out], k)
		size[k] = r.bytes[r.rootOf[t.Value]]
		host[t.Out] += size[k]
		host[t.Use+1] -= size[k]
		if rep.MovedBytes > maxTotal {
			return r.violation(RuleOverflow, t.Out, -1, t.Value, "the bytes that transfers move exceed 63 bits")
		}
		rep.MovedBytes += size[k]
	}
	var held int64
	for pos := range n {
		held += host[pos]
		rep.HostBytes = max(rep.HostBytes, held)
		if held > link.HostBytes {
			return r.violation(RuleTransfer, pos, r.order[pos], -1, "transfers hold %d bytes of host memory; there are %d", held, link.HostBytes)
		}
	}
	var now, outFree, inFree int64
	gone, there := make([]int64, len(moves)), make([]int64, len(moves))
	copying := func(start, bytes int64, speed float64) (int64, bool) {
		took := math.Ceil(float64(bytes) / speed)
		if took > maxTotal || start > maxTotal {
			return 0, false
		}
		return start + int64(took), true
	}
	for pos, i := range r.order {
		for _, k := range free[pos] {
			now = max(now, gone[k])
		}
		ok := true
		for _, k := range back[pos] {
			there[k], ok = copying(max(now, inFree, gone[k]), size[k], link.BytesPerNsIn)
			inFree = there[k]
			if !ok {
				return r.violation(RuleOverflow, pos, i, moves[k].Value, "time exceeds 63 bits")
			}
		}
		for _, k := range use[pos] {
			now = max(now, there[k])
		}
		if now > maxTotal || r.p.Ops[i].Cost > math.MaxInt64-now {
			return r.violation(RuleOverflow, pos, i, -1, "time exceeds 63 bits")
		}
		now += r.p.Ops[i].Cost
		for _, k := range out[pos] {
			gone[k], ok = copying(max(now, outFree), size[k], link.BytesPerNsOut)
			outFree = gone[k]
			if !ok {
				return r.violation(RuleOverflow, pos, i, moves[k].Value, "time exceeds 63 bits")
			}
		}
	}
	rep.Stall = now - rep.Cost
	rep.Cost = now
	return nil
}

// measure applies optional in-place reuse and adds up memory and cost.
func (r *replay) measure(moves []Transfer) (Report, *Violation) {
	p := r.p
	rep := Report{PeakPos: 0, LimitBytes: r.limited()}
	holdsOutput := make(map[int]bool)
	for v := range p.Values {
		if p.Values[v].Output {
			holdsOutput[r.now[v]] = true
		}
	}
	for _, s := range r.reuse {
		a, b := &r.inst[s.in], &r.inst[s.out]
		if s.in == s.out || a.start < 0 || a.last != s.pos || b.start != s.pos || a.bytes != b.bytes ||
			a.mergedTo >= 0 || b.takenAt >= 0 || holdsOutput[s.in] {
			continue
		}
		a.mergedTo, b.takenAt = s.out, s.pos
	}
	n := len(r.order)
	rep.MemoryBytes = make([]int64, n)
	at := func(pos int, bytes int64) bool {
		if rep.MemoryBytes[pos] > math.MaxInt64-bytes {
			return false
		}
		rep.MemoryBytes[pos] += bytes
		return true
	}
	step := make([]int64, n+1)
	var resident int64
	for k := range r.inst {
		s := &r.inst[k]
		if s.start < 0 {
			resident += s.bytes
			continue
		}
		from := s.start
		if s.takenAt >= 0 {
			from++ // while its op runs it lives in the memory of the input
		}
		if from <= s.last {
			step[from] += s.bytes
			step[s.last+1] -= s.bytes
		}
		for _, t := range s.away {
			step[t.Free] -= s.bytes
			step[t.In] += s.bytes
		}
	}
	live := resident
	for pos, i := range r.order {
		live += step[pos]
		if live < 0 || !at(pos, live) || !at(pos, p.Ops[i].Workspace) {
			return rep, r.violation(RuleOverflow, pos, i, -1, "memory exceeds 63 bits")
		}
		if rep.Cost > math.MaxInt64-p.Ops[i].Cost {
			return rep, r.violation(RuleOverflow, pos, i, -1, "cost exceeds 63 bits")
		}
		rep.Cost += p.Ops[i].Cost
		if rep.MemoryBytes[pos] > rep.PeakBytes {
			rep.PeakBytes, rep.PeakPos = rep.MemoryBytes[pos], pos
		}
	}
	if n == 0 {
		rep.PeakBytes = resident
	}
	if v := r.wait(moves, &rep); v != nil {
		return rep, v
	}
	for i := range p.Ops {
		rep.BaseCost += p.Ops[i].Cost
		rep.Recomputed += r.runs[i] - 1
	}
	for k := range r.inst {
		s := &r.inst[k]
		if s.start < 0 || (s.start <= rep.PeakPos && rep.PeakPos <= s.last && !(s.takenAt == rep.PeakPos) && !s.awayAt(rep.PeakPos)) {
			rep.LiveAtPeak = append(rep.LiveAtPeak, k)
		}
	}
	sortBy(rep.LiveAtPeak, func(a, b int) bool {
		if r.inst[a].bytes != r.inst[b].bytes {
			return r.inst[a].bytes > r.inst[b].bytes
		}
		return r.inst[a].value < r.inst[b].value
	})
	for k, id := range rep.LiveAtPeak {
		rep.LiveAtPeak[k] = r.inst[id].value
	}
	return rep, nil
}

// checkPlacements holds the layout against the memory that the replay found to
// be in use.
func (r *replay) checkPlacements(plan *Plan, budget int64) *Violation {
	if plan.Offsets == nil {
		return nil
	}
	type key struct{ value, start int }
	want := make(map[key]Placement)
	for k := range r.inst {
		s := &r.inst[k]
		if s.takenAt >= 0 || s.bytes == 0 {
			continue
		}
		end := s.last
		for m := s.mergedTo; m >= 0; m = r.inst[m].mergedTo {
			end = r.inst[m].last
		}
		// Transfers cut the stretch.
		away := append([]Transfer(nil), s.away...)
		for m := s.mergedTo; m >= 0; m = r.inst[m].mergedTo {
			away = append(away, r.inst[m].away...)
		}
		start := s.start
		for _, t := range away {
			if t.Free > start {
				want[key{s.value, start}] = Placement{Value: s.value, Start: start, End: t.Free - 1, Bytes: s.bytes}
			}
			start = t.In
		}
		want[key{s.value, start}] = Placement{Value: s.value, Start: start, End: end, Bytes: s.bytes}
	}
	for pos, i := range r.order {
		if w := r.p.Ops[i].Workspace; w > 0 {
			want[key{-1, pos}] = Placement{Value: -1, Start: pos, End: pos, Bytes: w}
		}
	}
	var top int64
	byStart := make([]int, len(plan.Offsets))
	for k, pl := range plan.Offsets {
		byStart[k] = k
		w, ok := want[key{pl.Value, pl.Start}]
		if !ok || w.End != pl.End || w.Bytes != pl.Bytes {
			return r.violation(RuleLayout, pl.Start, -1, pl.Value, "placement %d (value %d, positions %d to %d, %d bytes) is not memory that the plan uses", k, pl.Value, pl.Start, pl.End, pl.Bytes)
		}
		delete(want, key{pl.Value, pl.Start})
		if pl.Offset < 0 || pl.Offset > math.MaxInt64-pl.Bytes {
			return r.violation(RuleLayout, pl.Start, -1, pl.Value, "placement %d has offset %d", k, pl.Offset)
		}
		if pl.Offset+pl.Bytes > top {
			top = pl.Offset + pl.Bytes
		}
	}
	if len(want) > 0 {
		worst := key{value: math.MaxInt, start: math.MaxInt}
		for k := range want {
			if k.start < worst.start || (k.start == worst.start && k.value < worst.value) {
				worst = k
			}
		}
		return r.violation(RuleLayout, worst.start, -1, worst.value, "memory of value %d opened at position %d has no placement", worst.value, worst.start)
	}
	sortBy(byStart, func(a, b int) bool { return plan.Offsets[a].Start < plan.Offsets[b].Start })
	var active []int
	for _, k := range byStart {
		a := plan.Offsets[k]
		keep := active[:0]
		for _, j := range active {
			b := plan.Offsets[j]
			if b.End < a.Start {
				continue
			}
			keep = append(keep, j)
			if a.Offset < b.Offset+b.Bytes && b.Offset < a.Offset+a.Bytes {
				return r.violation(RuleLayout, a.Start, -1, a.Value, "placements %d and %d overlap in the arena at position %d", j, k, a.Start)
			}
		}
		active = append(keep, k)
	}
	if plan.ArenaBytes < top {
		return r.violation(RuleClaim, -1, -1, -1, "the plan claims an arena of %d bytes, its placements need %d", plan.ArenaBytes, top)
	}
	if budget >= 0 && top > budget {
		return r.violation(RuleBudget, -1, -1, -1, "the arena of %d bytes exceeds the budget of %d bytes", top, budget)
	}
	return nil
}

// sortBy is a plain insertion and merge sort, stable, so that this file needs
// nothing from the solvers.
func sortBy(x []int, less func(a, b int) bool) {
	if len(x) < 2 {
		return
	}
	mid := len(x) / 2
	left := append([]int(nil), x[:mid]...)
	right := append([]int(nil), x[mid:]...)
	sortBy(left, less)
	sortBy(right, less)
	for k := range x {
		switch {
		case len(right) == 0 || (len(left) > 0 && !less(right[0], left[0])):
			x[k], left = left[0], left[1:]
		default:
			x[k], right = right[0], right[1:]
		}
	}
}
