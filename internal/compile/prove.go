package compile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/tensor"
	"reprise/passes/lower"
	"reprise/passes/pinned"
	"reprise/passes/remat"
	"reprise/runtime/exe"
)

// Proof is what ProveOnce counted on the final program.
type Proof struct {
	Ops    int `json:"ops"`    // op instances, views and constants aside
	Clones int `json:"clones"` // of which are recomputations
	// Once are the kinds of ops that run once, in the order in which they first stand in the program.
	Once []Count `json:"once"`
	// Twice is the number of pinned ops that run again: 0, or there is no proof.
	Twice int `json:"twice"`
	// Random is the number of random op ids, States that of states with a new value.
	Random int `json:"random"`
	States int `json:"states"`
	// Allowed are the layers that were opted out of pinning.
	Allowed []string `json:"recompute_allowed,omitempty"`

	once []*ir.Op // of the final program
}

// Count is how often ops of a kind run in a step: in the program before planning and in the planned
// one, loops counting as one turn.
type Count struct {
	Op      string `json:"op"`
	Why     string `json:"why"` // effect, order or choice
	Before  int    `json:"before"`
	Planned int    `json:"planned"`
	// Executed is how often kernels of such ops ran in a step, once Executed was told.
	Executed int `json:"executed"`
}

// ProveOnce shows law 4 on the final program, by counting, and leaves the counts in p.Proof.
// It follows what every op computes from what, through kernels' inner ops, in the program before
// planning and in the final one, and knows nothing of the plan. The message of an error
// ends in the label of what is broken:
//
//	P1 what is pinned (an effect, an order that is not fixed, a decision) runs once
//	P2 what happened before planning happens still, and effects of a kind in the same order
//	P3 every op and every clone computes what the op of its id did before planning: from the same values, with the same
//	   attributes, kernel variant and random op id; so every use of what is pinned reads its only result
//	P4 every result, a state's new value included, is what it was before planning
//	P5 two random ops that are no copies of each other have different op ids
//	P6 every state is written exactly once, by the op that makes its new value
//	P7 what an op reads is still in memory when it reads it
func (p *Program) ProveOnce() error {
	final := p.planned.applied.Func
	before := p.planned.before.Func("step")
	allowed := final.Module.Attrs.Strs(ir.RecomputeAllowed)
	n := &numbers{ids: map[string]int{}, allowed: allowed}
	was := n.run(before, ordinals(before))
	now := n.run(final, p.planned.problem.Ordinals())

	proof := &Proof{Allowed: allowed, Once: countKinds(was, now)}
	p.Proof = proof
	for _, o := range now.once {
		proof.once = append(proof.once, o.op)
	}
	for _, op := range final.Body.Ops {
		if !lower.IsView(op) && !lower.IsConstant(op) {
			proof.Ops++
			if op.Remat != nil {
				proof.Clones++
			}
		}
	}
	if err := pinnedOnce(was, now, proof); err != nil {
		return err
	}
	if err := sameEffects(was, now); err != nil {
		return err
	}
	if err := sameValues(was, now, p.planned.applied.Runs); err != nil {
		return err
	}
	for i, name := range final.Results {
		if i >= len(before.Results) || before.Results[i] != name || was.results[i] != now.results[i] {
			op := final.Body.Results[i].Op
			if i < len(before.Results) && before.Results[i] == name {
				op = before.Body.Results[i].Op // what should have made it
			}
			return proofError(op, "pinned", "result %q is not what it was before planning (P4)", name)
		}
	}
	if len(before.Results) != len(final.Results) {
		return diag.Errorf("pinned", "%d results, before planning there were %d (P4)", len(final.Results), len(before.Results))
	}
	var err error
	if proof.Random, err = randomIDs(final); err != nil {
		return err
	}
	if proof.States, err = statesOnce(p.planned); err != nil {
		return err
	}
	return p.planned.memory()
}

// proofError names layer, op and source of what was found.
func proofError(op *ir.Op, code, format string, args ...any) *diag.Error {
	e := diag.Errorf(code, format, args...).WithHint("this must not happen: keep the model and report it with the output of reprise doctor")
	if op != nil {
		e.Layer, e.Op, e.File, e.Line = op.Loc.Layer, op.Name(), op.Loc.File, op.Loc.Line
	}
	return e
}

// numbered is a result with its number.
type numbered struct {
	op     *ir.Op
	result int
	number int
}

// sameValues compares what every op and every clone computes with what the op of its id did before planning.
// It names the first op that was changed, where the rest of P3 would find some op that computes the like.
func sameValues(was, now *course, runs map[*ir.Op]remat.Run) error {
	before := make(map[int]int, len(was.values))
	for _, v := range was.values {
		before[v.op.Results[v.result].ID] = v.number
	}
	// now.steps has the ops inside kernels too, and those without a result.
	next := 0
	strange := func(last *ir.Op) error {
		for reached := false; next < len(now.steps); next++ {
			s := now.steps[next]
			mine := last != nil && top(s.op) == last
			if reached && !mine {
				break
			}
			reached = reached || mine
			if !was.made[s.number] {
				return proofError(s.op, "pinned", "%s%s computes what no op of the program before planning does: from other values, or with other attributes (P3)", about(s.op), within(s.op))
			}
		}
		return nil
	}
	for _, v := range now.values {
		if v.result == 0 {
			if err := strange(v.op); err != nil {
				return err
			}
		}
		r, ok := runs[v.op]
		if !ok || v.result >= len(r.Values) {
			continue
		}
		if number, ok := before[r.Values[v.result]]; ok && number != v.number {
			return proofError(v.op, "pinned", "%s computes something else than before planning: from other values, or with other attributes (P3)", about(v.op))
		}
	}
	return strange(nil)
}

// top is the op of the function's body that op is part of.
func top(op *ir.Op) *ir.Op {
	for op.Block.Owner != nil {
		op = op.Block.Owner
	}
	return op
}

// within names the unit that an op is part of.
func within(op *ir.Op) string {
	if t := top(op); t != op {
		return " in " + remat.Name(t)
	}
	return ""
}

func about(op *ir.Op) string {
	if op.Remat != nil {
		return "the clone of " + op.Name()
	}
	return op.Name()
}

// ordinals are the numbers of the ops before planning: what tells two ops apart that run once and are written alike.
// They are those that the planned program's ops have (remat.Problem.Ordinals).
func ordinals(f *ir.Func) map[*ir.Op]int {
	number := remat.Numbers(f)
	out := make(map[*ir.Op]int, len(number))
	for _, op := range f.Body.Ops {
		if n, ok := number[op.ID]; ok {
			out[op] = n
		}
	}
	return out
}

// numbers gives every value a number such that values have the same one where they are computed
// alike: by the same op, with the same attributes, from the same numbers. An op
// that runs once has a number of its own.
type numbers struct {
	ids     map[string]int
	allowed []string
}

func (n *numbers) id(key string) int {
	id, ok := n.ids[key]
	if !ok {
		id = len(n.ids)
		n.ids[key] = id
	}
	return id
}

// step is an op as it was met.
type step struct {
	op     *ir.Op
	number int
}

// onceStep is an op that runs once, as it was met.
type onceStep struct {
	step
	pin pinned.Pin
}

// course is a program as numbers followed it.
type course struct {
	made    map[int]bool // numbers that its ops have
	steps   []step       // all ops, in order
	once    []onceStep   // those that run once, in order
	values  []numbered   // results of the ops at the top, in order
	results []int

	ordinal map[*ir.Op]int
	decides map[*ir.Op]*ir.Op
	depth   int
}

func (n *numbers) run(f *ir.Func, ordinal map[*ir.Op]int) *course {
	c := &course{made: map[int]bool{}, ordinal: ordinal, decides: pinned.Decisions(f.Body)}
	args := make([]int, len(f.Body.Params))
	for i, p := range f.Body.Params {
		args[i] = n.id("param " + p.Name)
	}
	c.results = n.block(c, f.Body, args, "")
	return c
}

// block numbers a block's values and returns those of its results. path names the op that the
// block is a region of, where that runs once.
func (n *numbers) block(c *course, b *ir.Block, args []int, path string) []int {
	of := make(map[*ir.Value]int, len(b.Params)+len(b.Ops))
	for i, p := range b.Params {
		of[p] = args[i]
	}
	var in []int
	for i, op := range b.Ops {
		in = in[:0]
		for _, v := range op.Operands {
			in = append(in, of[v])
		}
		for k, r := range n.op(c, op, in, path+"/"+strconv.Itoa(i)) {
			of[op.Results[k]] = r
			if b.Owner == nil {
				c.values = append(c.values, numbered{op, k, r})
			}
		}
	}
	out := make([]int, len(b.Results))
	for i, v := range b.Results {
		out[i] = of[v]
	}
	return out
}

func (n *numbers) op(c *course, op *ir.Op, in []int, path string) []int {
	if op.Name() == "fused" {
		return n.block(c, op.Regions[0], in, path)
	}
	var key strings.Builder
	key.WriteString(op.Name())
	attrsKey(&key, op.Attrs)
	for _, v := range in {
		key.WriteByte(' ')
		key.WriteString(strconv.Itoa(v))
	}
	if top := op.Block.Owner == nil; top {
		o := op
		if op.Remat != nil {
			o = op.Remat
		}
		path = "?"
		if at, ok := c.ordinal[o]; ok {
			path = strconv.Itoa(at)
		}
	}
	for _, r := range op.Regions {
		c.depth++
		args := make([]int, len(r.Params))
		for i, p := range r.Params {
			args[i] = n.id(fmt.Sprintf("region %d.%d %v", c.depth, i, p.Type))
		}
		key.WriteString(" {")
		for _, v := range n.block(c, r, args, path) {
			key.WriteString(strconv.Itoa(v))
			key.WriteByte(' ')
		}
		key.WriteByte('}')
		c.depth--
	}
	pin, once := n.pin(c, op)
	if once && pin.Kind != pinned.Choice {
		key.WriteString(" once ")
		key.WriteString(path)
	}
	number := n.id(key.String())
	c.made[number] = true
	c.steps = append(c.steps, step{op, number})
	if once {
		c.once = append(c.once, onceStep{step{op, number}, pin})
	}
	out := make([]int, len(op.Results))
	for i := range out {
		out[i] = number
		if i > 0 {
			out[i] = n.id(strconv.Itoa(number) + "." + strconv.Itoa(i))
		}
	}
	return out
}

// pin is the reason for which an op runs once, by itself or by what its result is used for.
func (n *numbers) pin(c *course, op *ir.Op) (pinned.Pin, bool) {
	pin, once := pinned.Own(op)
	if !once && c.decides[op] == op {
		pin, once = pinned.Pin{Kind: pinned.Choice, Why: "its result routes"}, true
	}
	if once && pin.Allowable(op) && slices.Contains(n.allowed, op.Loc.Layer) {
		return pin, false
	}
	return pin, once
}

// attrsKey writes attributes; dense ones are shared by all copies of an op.
func attrsKey(b *strings.Builder, as ir.Attrs) {
	for _, a := range as {
		b.WriteByte(' ')
		b.WriteString(a.Name)
		b.WriteByte('=')
		switch v := a.Val.(type) {
		case *tensor.Tensor:
			fmt.Fprintf(b, "%p", v)
		case int64:
			b.WriteString(strconv.FormatInt(v, 10))
		case string:
			b.WriteString(strconv.Quote(v))
		default:
			fmt.Fprintf(b, "%v", v)
		}
	}
}

// countKinds counts what runs once by the kind of op.
func countKinds(was, now *course) []Count {
	var out []Count
	count := func(c *course, add func(*Count)) {
		for _, o := range c.once {
			why := reason(o.op)
			i := slices.IndexFunc(out, func(k Count) bool { return k.Op == o.op.Name() && k.Why == why })
			if i < 0 {
				i = len(out)
				out = append(out, Count{Op: o.op.Name(), Why: why})
			}
			add(&out[i])
		}
	}
	count(was, func(k *Count) { k.Before++ })
	count(now, func(k *Count) { k.Planned++ })
	return out
}

// pinnedOnce compares how often each pinned op stands in the two programs.
func pinnedOnce(was, now *course, proof *Proof) error {
	left := map[int]int{}
	for _, o := range was.once {
		left[o.number]++
	}
	var first error
	twice := func(o onceStep, why string) {
		proof.Twice++
		if first == nil {
			first = proofError(o.op, "pinned", "%s runs a second time although %s: %s (P1)", o.op.Name(), o.pin.Why, why)
		}
	}
	for _, o := range now.once {
		switch clone := cloned(o.op); {
		case clone:
			twice(o, "it is a clone")
		case left[o.number] > 0:
		case was.made[o.number]:
			twice(o, "it stands there more often than before planning")
		default:
			continue // computes something else: P3
		}
		left[o.number]--
	}
	if first != nil {
		return first
	}
	for _, o := range was.once {
		if left[o.number] > 0 {
			return proofError(o.op, "pinned", "%s is gone, or reads other values than before planning (P2)", o.op.Name())
		}
	}
	return nil
}

// cloned: op is a clone, or stands in the region of one.
func cloned(op *ir.Op) bool {
	for {
		if op.Remat != nil {
			return true
		}
		if op.Block == nil || op.Block.Owner == nil {
			return false
		}
		op = op.Block.Owner
	}
}

// sameEffects compares the order of effects of a kind.
func sameEffects(was, now *course) error {
	kinds := [][]ir.Effect{{ir.EffectComm}, {ir.EffectHost}, {ir.EffectReads, ir.EffectWrites}}
	for _, kind := range kinds {
		var order []int
		for _, o := range was.once {
			if slices.Contains(kind, o.op.Effect()) {
				order = append(order, o.number)
			}
		}
		for _, o := range now.once {
			if !slices.Contains(kind, o.op.Effect()) {
				continue
			}
			if len(order) == 0 || order[0] != o.number {
				return proofError(o.op, "pinned", "%s (effect %s) does not happen in the order of the program before planning (P2)", o.op.Name(), o.op.Effect())
			}
			order = order[1:]
		}
	}
	return nil
}

// randomIDs checks that no two originals share a random op id, inside of kernels too.
func randomIDs(f *ir.Func) (int, error) {
	first := map[int64]*ir.Op{}
	var err error
	f.Body.Walk(func(op *ir.Op) {
		id, random := op.Attrs.Get("rng").(int64)
		if !random || op.Det() != ir.Keyed || cloned(op) || ir.IsCopy(op.Loc) {
			return
		}
		if o := first[id]; o != nil && err == nil {
			err = proofError(op, "pinned", "random op id %d is that of %s in layer %s too (P5)", id, o.Name(), o.Loc.Layer)
		}
		first[id] = op
	})
	return len(first), err
}

// statesOnce counts the writes to each state: in place by the op that makes its new value, or
// by the copy after the last op, never both.
func statesOnce(p *planned) (int, error) {
	f := p.applied.Func
	writes := map[*ir.Value][]*ir.Op{}
	for _, op := range f.Body.Ops {
		if lower.IsView(op) {
			continue
		}
		for _, r := range op.Results {
			if h := p.frame.Homes[r]; h.Param != nil {
				writes[h.Param] = append(writes[h.Param], op)
			}
		}
	}
	states := 0
	params := f.ParamsByName()
	for i, name := range f.Results {
		s := params[name]
		if s == nil || !s.IsState() {
			continue
		}
		states++
		v := f.Body.Results[i]
		switch w := writes[s]; {
		case len(w) > 1:
			return 0, proofError(w[1], "pinned", "state %q is written by %s and again by %s (P6)", name, w[0].Name(), w[1].Name())
		case len(w) == 1 && base(v).Op != w[0]:
			return 0, proofError(w[0], "pinned", "state %q is written by %s, which does not make its new value (P6)", name, w[0].Name())
		}
		delete(writes, s)
	}
	for _, s := range f.Body.Params {
		if w := writes[s]; len(w) > 0 {
			return 0, proofError(w[0], "pinned", "%s writes %s %q, which has no new value (P6)", w[0].Name(), s.Role(), s.Name)
		}
	}
	return states, nil
}

// base is the value whose memory v is.
func base(v *ir.Value) *ir.Value {
	for v.Op != nil && lower.IsView(v.Op) {
		v = v.Op.Operands[v.Index]
	}
	return v
}

// Executed takes the counters of steps that were run (runtime.Instance.Counts) into p.Proof. The error
// names an op that runs once and did not run once in each of them; ops of loops may.
func (p *Program) Executed(counts []int64, steps int) error {
	run := map[*ir.Op]int{}
	for i, r := range p.Runs {
		run[r.IR] = i
	}
	ran := map[exe.OpRun]int64{}
	for i, r := range exe.SortOps(p.Exe.Ops) {
		ran[r] = counts[i]
	}
	for _, op := range p.Proof.once {
		unit := op
		at, ok := run[unit]
		for !ok && unit.Block.Owner != nil {
			unit = unit.Block.Owner
			at, ok = run[unit]
		}
		if !ok {
			continue // no element, no kernel
		}
		r := p.Runs[at].OpRun
		if r.Sub == 0 && ran[r] != int64(steps) {
			return proofError(op, "pinned", "%s ran %d times in %d steps", op.Name(), ran[r], steps)
		}
		for i := range p.Proof.Once {
			if k := &p.Proof.Once[i]; k.Op == op.Name() && k.Why == reason(op) {
				k.Executed += int(ran[r] / int64(max(1, steps)))
				break
			}
		}
	}
	return nil
}

// Unfixed lists the ops of the final program of unfixed or unknown order.
func (p *Program) Unfixed() []*ir.Op {
	return slices.DeleteFunc(slices.Clone(p.Proof.once), func(op *ir.Op) bool { return reason(op) != "order" })
}

// reason is the kind of pin that counts name.
func reason(op *ir.Op) string {
	pin, once := pinned.Own(op)
	if !once {
		pin.Kind = pinned.Choice
	}
	return [...]string{pinned.Effect: "effect", pinned.Order: "order", pinned.Choice: "choice"}[pin.Kind]
}
