package compile

import (
	"maps"
	"slices"

	"reprise/ir"
	"reprise/passes/fuse"
	"reprise/passes/remat"
	"reprise/planner"
)

// A value that its readers can compute for themselves (package fuse) takes no memory, and a little time
// in each of them. Whether that is better than keeping it, or computing it again as an op of
// its own, is a question of the budget. So a model is planned in several variants, from nothing fused to
// everything that can be, each stated to the planner with what its ops then cost and read, and the
// best program is taken. Nothing fused is among them, so that fusing makes no plan worse.

// variant is the module with some values computed by their readers.
type variant struct {
	sites  []fuse.Site
	stated *stated // once; never applied
	least  planner.Known
	ops    map[int]remat.Known
}

const (
	maxVariants = 5  // planned with little work for one budget
	minVariants = 3  // of which the smallest program is searched
	scoutShare  = 10 // what part of the planner's work is little
	// enoughOverhead: a program that takes this much longer than keeping everything is good enough to look no further.
	enoughOverhead = 0.001
)

// stated is the planning problem of a variant, to be read only.
func (p *planning) stated(v *variant) (*stated, error) {
	if v.stated == nil {
		s, err := p.state(v)
		if err != nil {
			return nil, err
		}
		v.stated = s
	}
	return v.stated, nil
}

// known are the ops of a variant that were stated before, by id: all of them, or those of the
// program with nothing fused that the variant leaves as they are.
func (p *planning) known(v *variant) map[int]remat.Known {
	switch {
	case v.ops != nil:
		return v.ops
	case v.stated != nil:
		v.ops = v.stated.Known()
		return v.ops
	case v == p.whole || p.whole.stated == nil:
		return nil
	}
	out := maps.Clone(p.known(p.whole))
	for _, s := range v.sites {
		delete(out, s.Reader)
		delete(out, s.Producer)
	}
	return out
}

// kind is values that are computed alike, with their readers.
type kind struct {
	class string
	sites []fuse.Site
	price float64 // picoseconds more for each byte less in memory, about
}

// kinds are what could be fused, the cheapest for its bytes first: values that may be computed twice and that
// no policy wants in memory. With a table of measured costs there are none: the table has no times of fused ops.
func (p *planning) kinds() ([]kind, error) {
	if p.table != nil {
		return nil, nil
	}
	pr, err := p.stated(p.whole)
	if err != nil {
		return nil, err
	}
	pinned := map[int]bool{}
	for op := range pr.Pins {
		pinned[op.ID] = true
	}
	var out []kind
	for _, s := range fuse.Sites(pr.Func) {
		if pinned[s.Producer] || p.policy != nil && !p.fusible(pr, s) {
			continue
		}
		i := slices.IndexFunc(out, func(k kind) bool { return k.class == s.Class })
		if i < 0 {
			i = len(out)
			out = append(out, kind{class: s.Class})
		}
		out[i].sites = append(out[i].sites, s)
	}
	for i := range out {
		out[i].price = price(out[i].sites)
	}
	slices.SortStableFunc(out, func(a, b kind) int {
		switch {
		case a.price < b.price:
			return -1
		case a.price > b.price:
			return 1
		}
		return 0
	})
	return out, nil
}

// price is about the picoseconds that fusing the sites, which are of one class, takes for each byte of their
// values: every reader computes the value, and nothing writes and reads it.
func price(sites []fuse.Site) float64 {
	ps, bytes := 0.0, int64(0)
	seen := map[int]bool{}
	for _, s := range sites {
		once := 0.0
		for _, op := range s.Ops {
			once += elementwise(op)
		}
		ps += once
		if !seen[s.Value] {
			seen[s.Value] = true
			ps -= once + traffic([]int64{s.Bytes, s.Bytes}, 0)
			bytes += s.Bytes
		}
	}
	return ps / float64(max(bytes, 1))
}

// chain is the variants: nothing fused, then ever more kinds.
func (p *planning) chain() ([]*variant, error) {
	if p.variants != nil {
		return p.variants, nil
	}
	kinds, err := p.kinds()
	if err != nil {
		return nil, err
	}
	vs := []*variant{p.whole}
	for _, k := range kinds {
		vs = append(vs, &variant{sites: append(slices.Clone(vs[len(vs)-1].sites), k.sites...)})
	}
	p.variants = vs
	return vs, nil
}

// picks are up to n indices below count, spread evenly: the first, the last, that in the middle, then the others.
func picks(count, n int) []int {
	n = min(count, n)
	out := []int{0}
	add := func(i int) {
		if !slices.Contains(out, i) {
			out = append(out, i)
		}
	}
	if n > 1 {
		add(count - 1)
	}
	if n > 2 {
		add((count - 1) / 2)
	}
	for i := range n {
		add(i * (count - 1) / max(n-1, 1))
	}
	return out[:n]
}

// within is the cheapest program found whose arena is at most budget bytes; nil, with the planner's reasons
// for the program with nothing fused, where there is none. Variants are first planned with little work,
// which tells them apart. What is fused in the best is then refined and planned with all of it, and so is the one with
// nothing fused unless it is proven that it can't be cheaper. known is a program that is found anyway, or nil.
func (p *planning) within(budget int64, known *planned) (*planned, *planner.InfeasibleError, error) {
	vs, err := p.chain()
	if err != nil {
		return nil, nil, err
	}
	if len(vs) == 1 {
		return p.withinOf(vs[0], budget, nil)
	}
	var best *planned
	var why *planner.InfeasibleError
	try := func(p *planning, v *variant, start []int) (*planned, error) {
		if start == nil && known != nil && known.arena <= budget && v.least.Peak() > budget {
			return nil, nil // what the search for the smallest did not reach, this one hardly does
		}
		out, inf, err := p.withinOf(v, budget, start)
		if v == vs[0] && inf != nil {
			why = inf
		}
		if out != nil && (best == nil || out.plan.Cost < best.plan.Cost) {
			best = out
		}
		return out, err
	}
	scout := p.scout()
	floor := int64(0) // no program with nothing fused is cheaper
	for k, i := range picks(len(vs), maxVariants) {
		if k == 3 && best == nil {
			break // the others would hardly fit either
		}
		out, err := try(scout, vs[i], nil)
		switch {
		case err != nil:
			return nil, nil, err
		case out != nil && out.plan.Overhead <= enoughOverhead:
			return out, nil, nil
		case out != nil && i == 0:
			floor = out.plan.LowerBound
		}
	}
	if known != nil && known.arena <= budget && !slices.Contains(vs, known.variant) {
		if _, err := try(scout, known.variant, known.plan.Order); err != nil {
			return nil, nil, err
		}
	}
	type attempt struct {
		v     *variant
		start []int
	}
	var again []attempt
	whole := true
	switch {
	case best == nil && known != nil && known.arena <= budget:
		again = []attempt{{known.variant, known.plan.Order}}
	case best == nil:
		again = []attempt{{v: vs[len(vs)-1]}, {v: vs[len(vs)/2]}}
	default:
		d, err := p.refined(best.variant, best.plan.Order, cheaper(budget))
		if err != nil {
			return nil, nil, err
		}
		again = []attempt{{d.variant, d.order}}
		whole = best.plan.Cost > floor && d.variant != vs[0]
	}
	if whole {
		again = append(again, attempt{v: vs[0]})
	}
	for _, a := range again {
		out, err := try(p, a.v, a.start)
		if err != nil {
			return nil, nil, err
		}
		if out != nil && best.variant == a.v && best.plan.LowerBound < out.plan.LowerBound {
			setBound(best.plan, out.plan.LowerBound, out.plan.Proof)
		}
	}
	return best, why, nil
}

// scout is the planning with little work.
func (p *planning) scout() *planning {
	q := *p
	if q.opt.TimeLimit = 0; q.opt.Steps == 0 {
		q.opt.Steps = planSteps
	}
	q.opt.Steps /= scoutShare
	return &q
}

// smallest is the program of the smallest arena that was found. Plans are compared by their live bytes, which layouts
// nearly always reach: a layout without holes is the dearest part of a program of many values.
func (p *planning) smallest() (*planned, error) {
	if p.least != nil {
		return p.least, nil
	}
	vs, err := p.chain()
	if err != nil {
		return nil, err
	}
	var v *variant
	var plan *planner.Plan
	var drafts []draft
	look := func(w *variant) error {
		q, err := p.leastOf(w)
		if err != nil {
			return err
		}
		if plan == nil || q.PeakBytes < plan.PeakBytes || q.PeakBytes == plan.PeakBytes && q.Cost < plan.Cost {
			v, plan = w, q
		}
		d, err := p.refined(w, q.Order, smaller)
		drafts = append(drafts, d)
		return err
	}
	for _, i := range picks(len(vs), minVariants) {
		if err := look(vs[i]); err != nil {
			return nil, err
		}
	}
	best, err := p.realise(v, plan, 0)
	if err != nil {
		return nil, err
	}
	offer := func(out *planned) {
		if out.arena < best.arena || out.arena == best.arena && out.plan.Cost < best.plan.Cost {
			best = out
		}
	}
	d := drafts[0]
	for _, e := range drafts[1:] {
		if smaller(d.is, e.is) {
			d = e
		}
	}
	if d.variant != v {
		out, err := p.smallestOf(d.variant)
		if err != nil {
			return nil, err
		}
		offer(out)
	}
	if d.is.PeakBytes <= best.arena {
		out, _, err := p.scout().withinOf(d.variant, d.is.PeakBytes, d.order)
		if err != nil {
			return nil, err
		}
		if out != nil { // without holes in its layout
			offer(out)
		}
	}
	p.least = best
	return best, nil
}

// minimum is the program of the smallest arena that was found, whether the search, keeping everything or the policy by
// itself found it.
func (p *planning) minimum(all *planned, restricted bool) (*planned, error) {
	least, err := p.smallest()
	if err != nil {
		return nil, err
	}
	if least.arena > all.arena && !restricted {
		least = all
	}
	if restricted {
		if obeys, err := p.obeying(); err == nil && obeys.arena < least.arena {
			least = obeys
		}
	}
	return least, nil
}

// cheapest is the cheapest program found in a budget that least is within.
func (p *planning) cheapest(budget int64, least *planned) (*planned, error) {
	found, _, err := p.within(budget, least)
	if err != nil || found == nil {
		return least, err
	}
	if found.variant == least.variant {
		setBound(least.plan, found.plan.LowerBound, found.plan.Proof)
	}
	if found.plan.Cost <= least.plan.Cost {
		return found, nil
	}
	return least, nil
}

// rebase states a plan's overhead and gap against the time of keeping everything.
func (p *planning) rebase(plan *planner.Plan) error {
	pr, err := p.stated(p.whole)
	if err != nil {
		return err
	}
	plan.BaseCost = 0
	for i := range pr.Problem.Problem.Ops {
		plan.BaseCost += pr.Problem.Problem.Ops[i].Cost
	}
	if plan.BaseCost > 0 {
		plan.Overhead = float64(plan.Cost-plan.BaseCost) / float64(plan.BaseCost)
		plan.Gap = float64(plan.Cost-plan.LowerBound) / float64(plan.BaseCost)
	}
	return nil
}

// floor is a number of bytes that no plan can do with less than, whatever is fused. inf is what the
// planner said of the program with nothing fused, nil where it said nothing.
func (p *planning) floor(inf *planner.InfeasibleError) (int64, error) {
	vs, err := p.chain()
	if err != nil {
		return 0, err
	}
	whole, err := p.stated(vs[0])
	if err != nil {
		return 0, err
	}
	if len(vs) == 1 {
		bound := lowerBound(whole.Problem.Problem)
		if inf != nil {
			bound = max(bound, inf.LowerBoundBytes)
		}
		return bound, nil
	}
	// Values that readers can compute take no bytes, and reading them no more than what they are made of.
	free := map[int]bool{}
	for _, s := range vs[len(vs)-1].sites {
		free[s.Value] = true
	}
	relaxed := *whole.Problem.Problem
	relaxed.Values = slices.Clone(relaxed.Values)
	storage := map[int]bool{}
	for i, v := range whole.Values {
		if free[v.ID] {
			relaxed.Values[i].Bytes = 0
			storage[relaxed.Values[i].Storage] = true
		}
	}
	for i := range relaxed.Values {
		if s := relaxed.Values[i].Storage; s != 0 && storage[s] {
			relaxed.Values[i].Bytes = 0
		}
	}
	least, err := planner.LeastBytes(&relaxed)
	return max(lowerBound(&relaxed), least), err
}

// fusedReaders are the readers, by the id of a value that each computes for itself.
func (p *planned) fusedReaders() map[int][]*ir.Op {
	if len(p.variant.sites) == 0 {
		return nil
	}
	ops := map[int]*ir.Op{}
	for _, op := range p.base.Ops {
		ops[op.ID] = op
	}
	out := map[int][]*ir.Op{}
	for _, s := range p.variant.sites {
		out[s.Value] = append(out[s.Value], ops[s.Reader])
	}
	return out
}
