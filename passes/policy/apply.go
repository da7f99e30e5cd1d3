package policy

import (
	"fmt"
	"slices"
	"strings"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/passes/remat"
	"reprise/planner"
)

// Options of Apply.
type Options struct {
	// Alone: there is no budget, so what a rule prefers is done.
	Alone bool
	// AllowUnmatched makes a rule that matches nothing a warning.
	AllowUnmatched bool
	// HostMemory says that there is memory to offload to. On a CPU the arena is host memory.
	HostMemory bool
}

// candidate is a value that the forward part makes.
type candidate struct {
	value int // index in the problem
	v     *ir.Value
	op    int
	layer string
	kinds []string // of the ops that compute it, and of those that these stand for
	inner []string // layers, in a while, if or case, of the ops that make it there
	name  string   // given by the model, or ""
	bytes int64

	plainDot bool // a contraction without batch dimensions computes it
	turn     int  // its place among those of its region

	list    string // the list of layers that it is in, "" if none
	pos     int    // the layer's position in that list, from 0
	region  string // the layer, "" outside of all lists
	readers []string
	outside bool // read by forward ops of other regions, so that it is an input of theirs

	result bool // a result of the step: in memory to its end, not for the backward part

	kept   string // why it is kept whatever a policy says, "" if a policy may decide
	free   string // why it costs nothing, "" if it could
	ctx    *context
	backed bool // read by the backward part
}

// context is what candidates of one problem share.
type context struct {
	problem   *remat.Problem
	cands     []*candidate
	positions map[string][]int // list: its indices, ascending
	lists     bool             // the model has a list of layers
}

// inside: c is made in a region and only read there, so that a checkpoint around the region would drop it.
// A model without lists of layers is one region.
func (c *candidate) inside() bool {
	if !c.ctx.lists {
		return true
	}
	return c.region != "" && !c.outside
}

func (c *candidate) isKind(kinds ...string) bool {
	return slices.ContainsFunc(kinds, func(k string) bool {
		return slices.ContainsFunc(c.kinds, func(have string) bool { return glob(k, have) })
	})
}

func (c *candidate) isNamed(names ...string) bool {
	if c.name == "" {
		return false
	}
	return slices.ContainsFunc(strings.Split(c.name, ","), func(have string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return glob(n, have) })
	})
}

// within is the innermost layer around c whose last component is one of last.
func (c *candidate) within(last ...string) string {
	parts := strings.Split(c.layer, ".")
	for i := len(parts) - 1; i >= 0; i-- {
		if slices.Contains(last, parts[i]) {
			return strings.Join(parts[:i+1], ".")
		}
	}
	return ""
}

// leaves: c is read outside of the run of n layers that it is made in.
func (c *candidate) leaves(n int) bool {
	return slices.ContainsFunc(c.readers, func(layer string) bool {
		list, pos, ok := c.ctx.place("", layer)
		return !ok || list != c.list || pos/n != c.pos/n
	})
}

// place is the position of a layer in its list.
func (x *context) place(pattern, layer string) (list string, pos int, ok bool) {
	list, index, ok := element(pattern, layer)
	if !ok {
		return "", 0, false
	}
	pos, ok = slices.BinarySearch(x.positions[list], index)
	return list, pos, ok
}

// label is a value as reports name it.
func (c *candidate) label() string {
	name := c.v.Name
	if c.name != "" {
		name = c.name
	}
	kind := remat.Kind(c.ctx.problem.Ops[c.op])
	if len(c.inner) > 0 {
		kind += " of " + strings.Join(c.inner, ", ")
	}
	return fmt.Sprintf("%s %%%s (%s)", c.layer, name, kind)
}

// ValueName is the name that the model gave a value, "" where it gave none.
func ValueName(v *ir.Value) string {
	if n := v.Attrs.Str("name"); n != "" {
		return n
	}
	if v.Name != "" && strings.Trim(v.Name, "0123456789") != "" {
		return v.Name
	}
	return ""
}

func newContext(pr *remat.Problem) *context {
	x := &context{problem: pr, positions: map[string][]int{}}
	index := map[*ir.Value]int{}
	for i, v := range pr.Values {
		index[v] = i
	}
	under := pr.Under() // what is read where, seen through views
	byValue := map[int]*candidate{}
	for i, op := range pr.Ops {
		if pr.Lowered[i] == nil || !pr.Forward[i] { // a view, or backward
			continue
		}
		for j, r := range op.Results {
			c := &candidate{value: index[r], v: r, op: i, layer: op.Loc.Layer, name: ValueName(r), ctx: x}
			c.bytes = pr.Problem.Values[c.value].Bytes
			inner := computing(op, j)
			if len(inner) > 0 && op.Name() == "fused" {
				c.layer = op.Regions[0].Results[j].Op.Loc.Layer
			}
			c.madeBy(inner)
			for _, o := range made(op, j) {
				c.madeBy(o.ops)
				c.inner = append(c.inner, o.layer)
				if n := o.value.Attrs.Str("name"); n != "" {
					c.names(n)
				}
			}
			po := &pr.Problem.Ops[i]
			switch {
			case po.RunsOnce():
				c.kept = "it is pinned: " + pr.Pins[op].Why
			case pr.Problem.Values[c.value].Output:
				c.kept, c.result = "it is a result of the step", true
			}
			x.cands = append(x.cands, c)
			byValue[c.value] = c
		}
	}
	// A name of a view is a name of what it views.
	for i, op := range pr.Ops {
		for _, r := range op.Results {
			if c, n := byValue[under[index[r]]], r.Attrs.Str("name"); pr.Lowered[i] == nil && c != nil && n != "" {
				c.names(n)
			}
		}
	}
	layerOf := func(i int) string { return pr.Ops[i].Loc.Layer }
	note := func(layer string) {
		if list, n, ok := element("", layer); ok && !slices.Contains(x.positions[list], n) {
			x.positions[list] = append(x.positions[list], n)
		}
	}
	for _, c := range x.cands {
		note(c.layer)
		x.innerLists(c.layer)
	}
	for _, list := range x.positions {
		slices.Sort(list)
	}
	x.lists = len(x.positions) > 0
	for i := range pr.Ops {
		if pr.Lowered[i] == nil {
			continue
		}
		for _, in := range pr.Problem.Ops[i].Inputs {
			c := byValue[under[in]]
			if c == nil {
				continue
			}
			if !pr.Forward[i] {
				c.backed = true
			} else if l := layerOf(i); !slices.Contains(c.readers, l) {
				c.readers = append(c.readers, l)
			}
		}
	}
	turns := map[string]int{}
	for _, c := range x.cands {
		if list, pos, ok := x.place("", c.layer); ok {
			_, n, _ := element("", c.layer)
			c.list, c.pos, c.region = list, pos, fmt.Sprintf("%s.%d", list, n)
		}
		c.outside = slices.ContainsFunc(c.readers, func(l string) bool {
			list, n, ok := element("", l)
			return !ok && c.region != "" || ok && fmt.Sprintf("%s.%d", list, n) != c.region
		})
		if c.plainDot {
			c.turn = turns[c.region]
			turns[c.region]++
		}
		if !c.backed && len(c.readers) == 0 {
			c.free = "nothing reads it"
		}
	}
	return x
}

// madeBy notes the ops that compute c.
func (c *candidate) madeBy(list []*ir.Op) {
	for _, o := range list {
		for _, k := range append([]string{o.Name()}, o.Loc.Prov...) {
			if !slices.Contains(c.kinds, k) && !slices.Contains([]string{"vjp", "inline", "unroll", "remat", "fuse"}, k) {
				c.kinds = append(c.kinds, k)
			}
		}
		c.plainDot = c.plainDot || o.Name() == "contract" && len(o.Attrs.Ints("lhs_batch")) == 0
	}
}

// names gives c one more name.
func (c *candidate) names(n string) {
	if c.name != "" {
		n = c.name + "," + n
	}
	c.name = n
}

// innerLists notes lists below the outermost one, which patterns may mean.
func (x *context) innerLists(layer string) {
	parts := strings.Split(layer, ".")
	for i := range parts {
		if list, n, ok := element(strings.Join(parts[:i+1], "."), layer); ok && !slices.Contains(x.positions[list], n) {
			x.positions[list] = append(x.positions[list], n)
		}
	}
}

// computing lists the ops that compute result j of op: itself, or the members of the unit that the
// result depends on.
func computing(op *ir.Op, j int) []*ir.Op {
	if op.Name() != "fused" {
		return []*ir.Op{op}
	}
	need := map[*ir.Op]bool{}
	var visit func(v *ir.Value)
	visit = func(v *ir.Value) {
		if v.Op == nil || need[v.Op] {
			return
		}
		need[v.Op] = true
		for _, o := range v.Op.Operands {
			visit(o)
		}
	}
	visit(op.Regions[0].Results[j])
	var out []*ir.Op
	for _, o := range op.Regions[0].Ops {
		if need[o] {
			out = append(out, o)
		}
	}
	return out
}

// matches reports whether a rule names c.
func (r *Rule) matches(c *candidate) bool {
	if r.MinBytes > 0 && c.v.Type.Bytes() < r.MinBytes {
		return false
	}
	return r.matchesLayer(c) && (r.Value == "" || c.isNamed(r.Value)) && (r.Op == "" || c.isKind(r.Op))
}

// inLayer: c is made in a layer that the pattern names, or in one inside of a while, if or case.
func (c *candidate) inLayer(pattern string) bool {
	return matchLayer(pattern, c.layer) || slices.ContainsFunc(c.inner, func(l string) bool { return matchLayer(pattern, l) })
}

func (r *Rule) matchesLayer(c *candidate) bool {
	if !c.inLayer(r.Layer) {
		return false
	}
	if r.Every == 0 {
		return true
	}
	_, pos, ok := c.ctx.place(r.Layer, c.layer)
	return ok && pos%r.Every == r.Offset
}

// Apply sets what the planner must and should do with the values of pr, which it changes, and says
// what every line matched. A rule that matches nothing is an error with near misses. A program without
// a backward part is left as it is.
func (p *Policy) Apply(pr *remat.Problem, opt Options) (*Report, error) {
	rep := &Report{Name: p.name, reasons: make([]string, len(pr.Values))}
	if len(pr.Problem.Gates) == 0 {
		rep.Warnings = append(rep.Warnings, "the program has no backward part, so there is nothing to keep for it: the policy does nothing")
		return rep, nil
	}
	x := newContext(pr)
	line := map[string]*RuleReport{}
	for _, w := range p.lines {
		r := &RuleReport{File: w.File, Line: w.Line, Text: w.Text}
		line[w.String()] = r
		rep.Rules = append(rep.Rules, r)
	}
	decided := make([]decision, len(x.cands))
	for k, c := range x.cands {
		decided[k] = p.decide(c, line)
	}
	if err := p.unmatched(x, line, rep, opt); err != nil {
		return nil, err
	}
	for k, c := range x.cands {
		d := &decided[k]
		if d.verdict == mustOffload && !opt.HostMemory {
			e := bad(d.where, "%s would be moved to the host, but this target's memory is the host's: moving a value there frees nothing", c.label()).
				WithHint("write save or recompute; offloading is for targets with memory of their own")
			e.Code, e.Layer = "offload", c.layer
			return nil, e
		}
	}
	if err := p.refuse(x, decided); err != nil {
		return nil, err
	}
	x.carry(decided)
	x.settle(decided, line, rep, opt)
	x.oneFate()
	return rep, p.limit(x, line, rep)
}

// decision is what a line says of a candidate.
type decision struct {
	verdict verdict
	prefer  bool // save is preferred (silent has no word for that)
	where   Where
}

// decide finds the line that decides about c, and counts it for every line that names it. Rules come
// before named policies, must before prefer, later lines before earlier ones.
func (p *Policy) decide(c *candidate, line map[string]*RuleReport) decision {
	var d decision
	rank := -1
	for i := range p.rules {
		r := &p.rules[i]
		if !r.matches(c) {
			continue
		}
		line[r.Where.String()].match(c)
		k := i
		if r.Must {
			k += len(p.rules)
		}
		if k < rank {
			continue
		}
		rank = k
		d = decision{where: r.Where}
		switch {
		case r.Fate == Offload:
			d.verdict = mustOffload
		case r.Fate == Save && r.Must:
			d.verdict = mustSave
		case r.Fate == Save:
			d.prefer = true
		case r.Must:
			d.verdict = mustRecompute
		default:
			d.verdict = preferRecompute
		}
	}
	for i := range p.uses {
		u := &p.uses[i]
		verdict := u.base.decide(c)
		if verdict == silent {
			continue
		}
		line[u.Where.String()].match(c)
		if rank < 0 {
			d = decision{verdict: verdict, where: u.Where}
		}
	}
	return d
}

// settle turns decisions into the planner's policies. What runs once anyway, and what has to be in
// memory anyway, stays as it is.
func (x *context) settle(decided []decision, line map[string]*RuleReport, rep *Report, opt Options) {
	vs := x.problem.Problem.Values
	for k, c := range x.cands {
		d := &decided[k]
		if d.where.Text == "" {
			continue
		}
		r := line[d.where.String()]
		v := &vs[c.value]
		recompute := d.verdict == mustRecompute || d.verdict == preferRecompute
		if recompute && c.kept != "" {
			r.hold(c, c.kept)
			continue
		}
		switch {
		case d.verdict == mustSave:
			v.Policy = planner.MustSave
		case d.prefer && !opt.Alone:
			v.Policy = planner.PreferSave
		case d.verdict == mustRecompute, d.verdict == preferRecompute && opt.Alone:
			v.Policy = planner.MustRecompute
		case d.verdict == preferRecompute:
			v.Policy = planner.PreferRecompute
		case d.verdict == mustOffload:
			v.Policy = planner.MustOffload
		}
		r.Decided++
		r.values = append(r.values, c.value)
		rep.reasons[c.value] = reason(d)
	}
}

func reason(d *decision) string {
	word := "must be"
	if d.prefer || d.verdict == preferRecompute {
		word = "is preferred"
	}
	what := "recomputed"
	switch {
	case d.prefer || d.verdict == mustSave:
		what = "saved"
	case d.verdict == mustOffload:
		what = "moved to the host"
	}
	return fmt.Sprintf("%s %s: policy %s", word, what, d.where)
}

// oneFate makes the results of one op agree: an op that may run once only can't have a result
// recomputed.
func (x *context) oneFate() {
	pr := x.problem.Problem
	for i := range pr.Ops {
		once := pr.Ops[i].RunsOnce()
		for _, v := range pr.Ops[i].Outputs {
			once = once || pr.Values[v].Policy == planner.MustSave
		}
		for _, v := range pr.Ops[i].Outputs {
			if p := pr.Values[v].Policy; once && (p == planner.MustRecompute || p == planner.PreferRecompute) {
				pr.Values[v].Policy = planner.PolicyNone
			}
		}
	}
}

// limit turns region budgets and memory_budget into limits of the planner, which decides what of their values is kept.
func (p *Policy) limit(x *context, line map[string]*RuleReport, rep *Report) error {
	for i := range p.uses {
		u := &p.uses[i]
		if u.base.share < 0 {
			continue
		}
		every := func(*candidate) bool { return true }
		all, pinned := x.keepable(every)
		limit := pinned + int64(u.base.share*float64(all-pinned))
		if err := x.within(limit, true, every, u.Where, line[u.Where.String()], rep); err != nil {
			return err
		}
	}
	for i := range p.budgets {
		b := &p.budgets[i]
		in := func(c *candidate) bool { return c.inLayer(b.Layer) }
		if err := x.within(b.Bytes, false, in, b.Where, line[b.Where.String()], rep); err != nil {
			return err
		}
	}
	return nil
}

// keepable is what the chosen values take that are kept for backward if nothing is computed again, and
// what of that no policy may give up.
func (x *context) keepable(in func(*candidate) bool) (all, pinned int64) {
	across := planner.KeptAcross(x.problem.Problem, planner.SaveAll(x.problem.Problem).Order)
	for _, c := range x.cands {
		if !in(c) || !across[c.value] || c.result {
			continue
		}
		all += c.bytes
		if c.kept != "" || x.problem.Problem.Values[c.value].Policy == planner.MustSave {
			pinned += c.bytes
		}
	}
	return all, pinned
}

// within states one limit. A share is never less than what has to be kept.
func (x *context) within(limit int64, share bool, in func(*candidate) bool, where Where, r *RuleReport, rep *Report) error {
	pr := x.problem.Problem
	l := planner.Limit{Name: where.String() + ": " + where.Text, Bytes: limit}
	all, least := x.keepable(in)
	r.bound = &bound{binds: all > limit}
	for _, c := range x.cands {
		if !in(c) || c.result {
			continue
		}
		l.Values = append(l.Values, c.value)
		if p := pr.Values[c.value].Policy; all > limit && c.kept == "" && p != planner.MustSave && p != planner.MustRecompute {
			if share { // a budget line counts all of its layers
				r.match(c)
			}
			r.Decided++
			r.values = append(r.values, c.value)
		}
	}
	if least <= limit {
		// With nothing kept that need not be, what is pinned may have to stay for what is computed again.
		q := *pr
		q.Limits = []planner.Limit{l}
		found, err := planner.LeastKept(&q)
		if err != nil {
			return err
		}
		least = found[0]
	}
	if share {
		l.Bytes = max(l.Bytes, least)
	}
	if least > l.Bytes {
		var who []string
		for _, c := range x.cands {
			if p := pr.Values[c.value].Policy; in(c) && !c.result && len(who) < 3 && (c.kept != "" || p == planner.MustSave) {
				why := c.kept
				if why == "" {
					why = rep.reasons[c.value]
				}
				who = append(who, fmt.Sprintf("%s (%d bytes: %s)", c.label(), c.bytes, why))
			}
		}
		return bad(where, "%d bytes can't be met: what no policy may give up there takes %d: %s", limit, least, strings.Join(who, ", ")).
			WithHint("give at least %d bytes", least)
	}
	r.bound.values, r.bound.limit, r.AllowedBytes = l.Values, l.Bytes, &l.Bytes
	pr.Limits = append(pr.Limits, l)
	return nil
}

// unmatched refuses lines that match nothing.
func (p *Policy) unmatched(x *context, line map[string]*RuleReport, rep *Report, opt Options) error {
	fail := func(w Where, e *diag.Error) error {
		if opt.AllowUnmatched {
			rep.Warnings = append(rep.Warnings, fmt.Sprintf("%s: %s", w, e.Message))
			return nil
		}
		return e
	}
	for i := range p.rules {
		if r := &p.rules[i]; line[r.Where.String()].Matched == 0 {
			if err := fail(r.Where, x.nothing(r)); err != nil {
				return err
			}
		}
	}
	for i := range p.uses {
		u := &p.uses[i]
		for _, n := range u.base.needs {
			if slices.ContainsFunc(x.cands, n.has) {
				continue
			}
			e := bad(u.Where, "%s: the model has no %s %q", u.Name, n.what, n.word)
			if hint := x.hint(n.what, n.word); hint != "" {
				e.Hint = hint
			}
			if err := fail(u.Where, e); err != nil {
				return err
			}
		}
		if !u.base.empty && line[u.Where.String()].Matched == 0 && len(u.base.needs) == 0 {
			if err := fail(u.Where, bad(u.Where, "%s matches nothing: %s", u.Name, x.regions())); err != nil {
				return err
			}
		}
	}
	for i := range p.budgets {
		b := &p.budgets[i]
		for _, c := range x.cands {
			if c.inLayer(b.Layer) {
				line[b.Where.String()].match(c)
			}
		}
		if line[b.Where.String()].Matched == 0 {
			e := bad(b.Where, "no layer matches %q", b.Layer)
			e.Hint = x.hint("layer", b.Layer)
			if err := fail(b.Where, e); err != nil {
				return err
			}
		}
	}
	for i := range p.allows {
		a := &p.allows[i]
		n := line[a.Where.String()]
		for _, c := range x.cands {
			if matchLayer(a.Layer, c.layer) {
				n.match(c)
			}
		}
		if n.Matched == 0 {
			e := bad(a.Where, "no layer matches %q", a.Layer)
			e.Hint = x.hint("layer", a.Layer)
			if err := fail(a.Where, e); err != nil {
				return err
			}
		}
	}
	return nil
}
