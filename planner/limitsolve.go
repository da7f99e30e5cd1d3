package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// This file plans within limits on what is kept across gates.
//
// The problem without its limits is planned first: a plan of it that keeps them is as good as any. Where it does
// not, what of the limited values is kept is chosen by what it costs to lose them (chooser), the rest must
// be recomputed, and that problem is planned by the other solvers. What such a plan computes again anyway is free to lose, so
// the choice is made anew with the plan's eyes, twice. In the end the cheapest of the plans is annealed with the limits as a
// rule of the moves (ledger), so that the choice and the plan change together. Small problems are
// solved outright. The bound is the better of that of the problem without limits, which holds for every plan within them, and that of
// the choice (limitNet).

// limitRounds is how often what is kept is chosen anew.
const limitRounds = 3

// tolled is p with what keep does not name, of the limited values that may be computed twice, to be recomputed, and without
// limits. keep is by value.
func (p *Problem) tolled(keep []bool) *Problem {
	q := *p
	q.Limits = nil
	q.Values = slices.Clone(p.Values)
	once := make([]bool, len(p.Values))
	for i := range p.Ops {
		o := &p.Ops[i]
		runs := o.RunsOnce()
		for _, v := range o.Outputs {
			runs = runs || p.Values[v].Policy == MustSave || p.Values[v].Policy == MustOffload
		}
		for _, v := range o.Outputs {
			once[v] = runs
		}
	}
	for k := range p.Limits {
		for _, v := range p.Limits[k].Values {
			if x := &q.Values[v]; !keep[v] && !once[v] && !x.Resident && !x.Output {
				x.Policy = MustRecompute
			}
		}
	}
	return &q
}

// without is p without its limits, the same at every call with one Known, and what is known of that.
func (k *Known) without(p *Problem) (*Problem, *Known) {
	if k != nil && k.of == p {
		return k.free, k.rest
	}
	q := *p
	q.Limits = nil
	rest := &Known{}
	if k != nil {
		k.of, k.free, k.rest = p, &q, rest
	}
	return &q, rest
}

// chooser decides what of the limited values is kept, for the order of the problem. Its unit is the buffer.
type chooser struct {
	m     *model
	place []int   // by node: position in the order
	gates []int   // positions
	open  []int32 // buffers that may be kept or not
	asked []bool  // by buffer: it is one of those
	lost  []bool  // by buffer: computed again whatever is chosen
	stays []bool  // by buffer: an output that is made before a gate, which is kept whatever is chosen
	here  []bool  // scratch of eval, by node
	held  []bool  // scratch of eval, by buffer
	used  []int64 // by limit: what the latest evaluation keeps
	evals int
}

func newChooser(m *model) *chooser {
	c := &chooser{m: m, place: make([]int, m.n), asked: make([]bool, len(m.size)), lost: slices.Clone(m.toll), here: make([]bool, m.n),
		held: make([]bool, len(m.size)), used: make([]int64, len(m.limit))}
	for k, x := range m.order {
		c.place[x] = k
		if m.gate[x] {
			c.gates = append(c.gates, k)
		}
	}
	c.stays = make([]bool, len(m.size))
	for b, f := range m.final {
		c.stays[b] = f && len(c.gates) > 0 && c.place[m.prod[b]] < c.gates[len(c.gates)-1]
	}
	for b := range m.size {
		b := int32(b)
		if m.weighs(b) && !m.once[m.prod[b]] && !m.final[b] && !m.loose[b] && !m.toll[b] {
			c.open, c.asked[b] = append(c.open, b), true
		}
	}
	return c
}

// choice is what is kept of the open buffers, by buffer, and what that means.
type choice struct {
	keep []bool
	cost int64 // of what is computed again behind gates
	over int64 // bytes that are kept beyond the limits
	kept int64 // bytes of all limits
}

func (c *choice) better(d *choice) bool {
	switch {
	case c.over != d.over:
		return c.over < d.over
	case c.cost != d.cost:
		return c.cost < d.cost
	}
	return c.kept < d.kept
}

// eval says what keeping the open buffers in keep means: behind each gate what is read there and may not be in memory is
// computed again, from what is kept.
func (c *chooser) eval(keep []bool) choice {
	m := c.m
	c.evals++
	out := choice{keep: keep}
	clear(c.held)
	copy(c.held, c.stays)
	for _, g := range c.gates {
		clear(c.here)
		for k := len(m.order) - 1; k >= 0; k-- {
			x := m.order[k]
			if k <= g && !c.here[x] {
				continue
			}
			for _, b := range m.ins[x] {
				y := m.prod[b]
				if c.place[y] >= g {
					continue
				}
				if (c.lost[b] || c.asked[b] && !keep[b]) && !m.once[y] {
					if !c.here[y] {
						c.here[y] = true
						out.cost += m.bias[y]
					}
				} else {
					c.held[b] = true
				}
			}
		}
	}
	clear(c.used)
	for k, w := range m.limit {
		for b, h := range c.held {
			if h {
				c.used[k] += w[b]
			}
		}
		out.kept += c.used[k]
		out.over += max(0, c.used[k]-m.p.Limits[k].Bytes)
	}
	return out
}

// with is eval of keep with buffer b changed.
func (c *chooser) with(keep []bool, b int32) choice {
	k := slices.Clone(keep)
	k[b] = !k[b]
	return c.eval(k)
}

const (
	chooseAll   = 10   // as many open buffers are tried in all combinations
	chooseEvals = 8000 // evaluations after which a choice is not improved further
)

// choose is the best choice found: of few buffers the best there is.
func (c *chooser) choose() choice {
	c.evals = 0
	best := c.eval(make([]bool, len(c.m.size)))
	if len(c.open) <= chooseAll {
		for set := 1; set < 1<<len(c.open); set++ {
			keep := make([]bool, len(c.m.size))
			for i, b := range c.open {
				keep[b] = set>>i&1 != 0
			}
			if d := c.eval(keep); d.better(&best) {
				best = d
			}
		}
		return best
	}
	try := func(d choice) {
		if d.better(&best) {
			best = d
		}
	}
	nothing := best
	for _, p := range [...]float64{1, 0.5} {
		try(c.fill(nothing, p))
	}
	plain := c.swap(c.fill(c.plain(nothing), 1))
	var near choice // the best that is a little too much
	for _, back := range [...]bool{false, true} {
		c.byPlace(back).cuts(func(keep []bool, _ int64) {
			d := c.eval(keep)
			if try(c.fill(d, 1)); d.over > 0 && (near.keep == nil || d.better(&near)) {
				near = d
			}
		})
	}
	if near.keep != nil {
		try(c.fill(c.thin(near), 1))
	}
	best = c.swap(best)
	try(plain)
	return best
}

// plain keeps what is dearest to make per byte, what that is made from aside, as far as it fits.
func (c *chooser) plain(at choice) choice {
	list := slices.Clone(c.open)
	price := func(b int32) float64 { return float64(c.m.bias[c.m.prod[b]]) / float64(c.m.size[b]+1) }
	slices.SortStableFunc(list, func(a, b int32) int { return cmp.Compare(price(b), price(a)) })
	for _, b := range list {
		if d := c.with(at.keep, b); d.over <= at.over {
			at = d
		}
	}
	return at
}

// loss is what letting go of each kept buffer of a choice costs, the cheapest for its bytes first.
func (c *chooser) losses(at *choice) []int32 {
	type entry struct {
		b     int32
		score float64
	}
	var list []entry
	for _, b := range c.open {
		if at.keep[b] {
			d := c.with(at.keep, b)
			list = append(list, entry{b, float64(d.cost-at.cost) / float64(max(at.kept-d.kept, 1))})
		}
	}
	slices.SortStableFunc(list, func(a, b entry) int { return cmp.Compare(a.score, b.score) })
	out := make([]int32, len(list))
	for i, e := range list {
		out[i] = e.b
	}
	return out
}

// thin lets go of buffers until the choice fits, or nothing more helps.
func (c *chooser) thin(at choice) choice {
	for _, b := range c.losses(&at) {
		if at.over == 0 {
			break
		}
		if d := c.with(at.keep, b); d.over < at.over {
			at = d
		}
	}
	return at
}

// fill keeps ever more, the dearest per byte (to the power of p) first, as far as it fits: what keeping each saves is
// worked out anew when what saves more is kept.
func (c *chooser) fill(at choice, p float64) choice {
	m := c.m
	// What makes too much less comes first, whatever it costs.
	for at.over > 0 {
		less := at
		for _, b := range c.open {
			if at.keep[b] {
				continue
			}
			if d := c.with(at.keep, b); d.better(&less) {
				less = d
			}
		}
		if less.over == at.over {
			return at
		}
		at = less
	}
	type entry struct {
		b     int32
		score float64
	}
	var list []entry
	for changed := true; changed; {
		changed = false
		list = list[:0]
		for _, b := range c.open {
			if at.keep[b] {
				continue
			}
			if d := c.with(at.keep, b); d.over == 0 && d.cost < at.cost {
				list = append(list, entry{b, float64(at.cost-d.cost) / pow(float64(m.size[b]+1), p)})
			}
		}
		slices.SortStableFunc(list, func(a, b entry) int { return cmp.Compare(b.score, a.score) })
		for _, e := range list {
			d := c.with(at.keep, e.b)
			if s := float64(at.cost-d.cost) / pow(float64(m.size[e.b]+1), p); d.over == 0 && s > 0 && s >= e.score/2 {
				at, changed = d, true
			}
		}
	}
	return at
}

// swap keeps a buffer more and lets go of those that are cheapest to lose, as long as that helps.
func (c *chooser) swap(at choice) choice {
	for again := true; again && at.over == 0 && c.evals < chooseEvals; {
		again = false
		cheap := c.losses(&at)
		for _, b := range c.open {
			if at.keep[b] || c.evals >= chooseEvals {
				continue
			}
			d := c.with(at.keep, b)
			gain := at.cost - d.cost
			for _, u := range cheap {
				if d.over == 0 || gain <= 0 {
					break
				}
				if !d.keep[u] {
					continue
				}
				if e := c.with(d.keep, u); e.over < d.over {
					d, gain = e, at.cost-e.cost
				}
			}
			if d.better(&at) {
				at, again = c.fill(d, 1), true
				break
			}
		}
	}
	return at
}

// values is a choice by value of the problem.
func (c *chooser) values(d *choice) []bool {
	keep := make([]bool, len(c.m.p.Values))
	for v := range keep {
		b := c.m.buf[v]
		keep[v] = b < 0 || !c.asked[b] || d.keep[b]
	}
	return keep
}

// unmet is the error of the first limit that the best choice does not keep.
func (c *chooser) unmet(d *choice) error {
	c.eval(d.keep)
	for k, n := range c.used {
		if l := &c.m.p.Limits[k]; n > l.Bytes {
			return opErr(-1, "%s allows %d bytes, and %d are the fewest that were found to keep of its values", c.m.p.limitName(k), l.Bytes, n)
		}
	}
	return nil
}

// LeastKept is what of each limit's values was found to be enough to keep across gates in the order of the problem, each limit taken
// by itself: what may run once only and is read behind a gate, or to compute again what is. What is within the limit
// is enough; where it is more, it is the fewest bytes found.
func LeastKept(p *Problem) ([]int64, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	out := make([]int64, len(p.Limits))
	for k := range p.Limits {
		q := *p
		q.Limits = []Limit{p.Limits[k]}
		m := newModel(&q)
		if m.limit == nil {
			continue
		}
		c := newChooser(m)
		d := c.eval(make([]bool, len(m.size)))
		if d.over > 0 {
			d = c.choose()
		}
		out[k] = d.kept
	}
	return out, nil
}

// withinLimits reports whether a plan keeps every limit of p.
func (p *Problem) withinLimits(plan *Plan) bool {
	r := newReplay(p, plan.Order)
	return r.run() == nil && r.withinLimits() == nil
}

// limitSearch plans one problem with limits.
type limitSearch struct {
	p     *Problem
	s     *search // of a copy of p, whose limits rounds narrows
	inner Options // of the solvers within
	peak  bool    // the smallest peak is looked for, not the least cost
	best  *Plan
	key   int64
}

func newLimitSearch(ctx context.Context, p *Problem, opt Options) *limitSearch {
	q := *p
	q.Limits = slices.Clone(p.Limits)
	l := &limitSearch{p: p, s: newSearch(ctx, &q, opt), inner: opt}
	l.inner.Known, l.inner.Progress = nil, nil
	if l.inner.Steps > 0 {
		l.inner.Steps = max(1, l.inner.Steps/2)
	}
	l.inner.TimeLimit = share(opt.TimeLimit)
	return l
}

// share is the part of a time limit that each of the searches within may take.
func share(t time.Duration) time.Duration { return t / (limitRounds + 2) }

// take makes plan the best if it keeps the limits and is better: by cost as policies weigh it, or by its peak. It returns
// the most bytes that the plan keeps beyond a limit.
func (l *limitSearch) take(plan *Plan) (over int64) {
	r := newReplay(l.p, plan.Order)
	if r.run() != nil {
		return 0
	}
	for k, n := range r.limited() {
		over = max(over, n-l.p.Limits[k].Bytes)
	}
	if over > 0 {
		return over
	}
	key := plan.PeakBytes
	if !l.peak {
		key = l.s.m.views
		for _, x := range l.s.m.nodes(plan.Order) {
			key += l.s.m.bias[x]
		}
	}
	if l.best == nil || key < l.key {
		l.best, l.key = plan, key
	}
	return 0
}

// rounds plans what is chosen, and chooses anew with the eyes of the plan, of which first is the first.
func (l *limitSearch) rounds(first *Plan, plan func(q *Problem) (*Plan, error)) error {
	m := l.s.m
	c := newChooser(m)
	seen := first
	for round := 0; round < limitRounds && !l.s.stopped(); round++ {
		if round > 0 && seen != nil {
			// What the plan does not keep anyway is no reason to keep something else.
			copy(c.lost, m.toll)
			for v, yes := range KeptAcross(l.p, seen.Order) {
				if b := m.buf[v]; b >= 0 && !yes && !c.asked[b] && !m.once[m.prod[b]] && !m.final[b] {
					c.lost[b] = true
				}
			}
		}
		d := c.choose()
		if d.over > 0 {
			if round == 0 {
				return c.unmet(&d)
			}
			break
		}
		got, err := plan(l.p.tolled(c.values(&d)))
		var inf *InfeasibleError
		switch {
		case errors.As(err, &inf):
			seen = nil
		case err != nil:
			return err
		default:
			// To meet its budget a plan may compute more again than was seen, from what runs once only and counts too.
			over := l.take(got)
			for k := range m.p.Limits {
				m.p.Limits[k].Bytes = max(0, m.p.Limits[k].Bytes-over)
			}
			seen = got
		}
	}
	copy(m.p.Limits, l.p.Limits)
	return nil
}

// polish anneals the best plan.
func (l *limitSearch) polish() error {
	s := l.s
	seq := s.m.nodes(l.best.Order)
	if _, _, ok := s.sim.run(seq); !ok || s.m.limit == nil {
		return nil
	}
	mean := float64(s.m.base) / float64(max(s.m.n, 1))
	usual := mix{moveRotate: 2, moveNear: 1, moveRemove: 2, moveAdd: 2, moveSwap: 2}
	hots := [...]float64{0.3, 0.1}
	var list [len(hots)]*annealer
	moves := s.allowance() / int64(2*len(hots))
	s.parallel(len(hots), func(k int) {
		list[k] = newAnnealer(s.m, seq, s.opt.Budget, s.opt.Seed*1000003+700+uint64(k))
		list[k].run(moves, hots[k]*mean, 0.002*mean, usual, s.stopped)
	})
	for _, a := range list {
		if a.best == nil || !s.m.honest(a.best) {
			continue
		}
		plan, err := s.plan(a.best, "limits")
		if err != nil {
			return err
		}
		if plan.PeakBytes <= s.opt.Budget && plan.ArenaBytes <= s.opt.Budget {
			l.take(plan)
		}
	}
	return nil
}

// solveLimits is Solve for problems with limits.
func solveLimits(ctx context.Context, p *Problem, opt Options) (*Plan, error) {
	start := time.Now()
	q, known := opt.Known.without(p)
	free := opt
	free.Known, free.TimeLimit = known, share(opt.TimeLimit)
	first, err := Solve(ctx, q, free)
	var inf *InfeasibleError
	if errors.As(err, &inf) {
		return nil, tooLittle(ctx, p, opt, inf.LowerBoundBytes)
	}
	if err != nil || p.withinLimits(first) {
		return first, err
	}
	l := newLimitSearch(ctx, p, opt)
	proof := first.Proof
	lower := first.LowerBound
	if p.Offload == nil && l.s.exhaust() && l.s.best != nil {
		if l.best, err = l.s.plan(l.s.best, l.s.solver); err != nil {
			return nil, err
		}
		lower, proof = l.s.lower, l.s.proof
	} else {
		if err := l.rounds(first, func(q *Problem) (*Plan, error) { return Solve(ctx, q, l.inner) }); err != nil {
			return nil, err
		}
		if l.best == nil { // the smallest plan may fit where what was chosen did not
			if l.best, err = leastLimits(ctx, p, opt); err != nil {
				return nil, err
			}
			if l.best.BudgetBytes > l.s.opt.Budget {
				return nil, tooLittle(ctx, p, opt, newModel(q).footprint())
			}
			l.take(l.best)
		}
		if p.Offload == nil {
			if err := l.polish(); err != nil {
				return nil, err
			}
		}
		if m := l.s.m; m.limit != nil {
			if n := m.base + newChooser(m).bound(); n > lower {
				lower, proof = n, ProofCut
			}
		}
	}
	plan := l.best
	plan.LowerBound, plan.Proof, plan.BudgetBytes = lower, proof, claimed(l.s.opt.Budget)
	plan.Steps += first.Steps
	plan.Seconds = time.Since(start).Seconds()
	plan.finish()
	if _, err := opt.check(p, plan, l.s.opt.Budget); err != nil {
		return nil, fmt.Errorf("planner: BUG: a solver made an illegal plan: %w", err)
	}
	return plan, nil
}

// leastLimits is MinBudget for problems with limits.
func leastLimits(ctx context.Context, p *Problem, opt Options) (*Plan, error) {
	q, known := opt.Known.without(p)
	free := opt
	free.Known, free.TimeLimit = known, share(opt.TimeLimit)
	first, err := MinBudgetOptions(ctx, q, free)
	if err != nil || p.withinLimits(first) {
		return first, err
	}
	l := newLimitSearch(ctx, p, opt)
	l.peak = true
	least := func(q *Problem) (*Plan, error) { return MinBudgetOptions(ctx, q, l.inner) }
	// Nothing kept that need not be is where the smallest plans are, so it is tried beside what costs least.
	c := newChooser(l.s.m)
	if d := c.eval(make([]bool, len(l.s.m.size))); d.over == 0 {
		plan, err := least(p.tolled(c.values(&d)))
		if err != nil {
			return nil, err
		}
		l.take(plan)
	}
	if err := l.rounds(first, least); err != nil {
		return nil, err
	}
	if l.best == nil {
		return nil, opErr(-1, "no plan was found that keeps the limits")
	}
	l.best.LowerBound, l.best.Proof = l.best.BaseCost, ProofBase
	l.best.finish()
	return l.best, nil
}

// tooLittle is the error of a budget that no plan was found in.
func tooLittle(ctx context.Context, p *Problem, opt Options, floor int64) error {
	least, err := leastLimits(ctx, p, opt)
	if err != nil {
		return err
	}
	rep, err := opt.check(p, least, -1)
	if err != nil {
		return err
	}
	e := &InfeasibleError{Budget: opt.Budget, MinBudget: max(least.PeakBytes, least.ArenaBytes), LowerBoundBytes: floor}
	e.bind(p, rep)
	return e
}

// chosen is p with what its limits leave no room for to be recomputed, in the order of the problem, and without limits.
func (p *Problem) chosen() (*Problem, error) {
	if len(p.Limits) == 0 {
		return p, nil
	}
	m := newModel(p)
	if m.limit == nil { // there is no gate that something could be kept across
		q := *p
		q.Limits = nil
		return &q, nil
	}
	c := newChooser(m)
	d := c.choose()
	if d.over > 0 {
		return nil, c.unmet(&d)
	}
	return p.tolled(c.values(&d)), nil
}

// obeyLimits is Obey for problems with limits.
func obeyLimits(p *Problem) (*Plan, error) {
	q, err := p.chosen()
	if err != nil {
		return nil, err
	}
	plan, err := Obey(q)
	if err != nil {
		return nil, err
	}
	m := newModel(p)
	plan.LowerBound, plan.Proof = m.base+m.atLeast, ProofBase
	if m.limit != nil {
		if l := m.base + newChooser(m).bound(); l > plan.LowerBound {
			plan.LowerBound, plan.Proof = l, ProofCut
		}
	}
	plan.finish()
	_, err = Check(p, plan, -1)
	var v *Violation
	switch {
	case errors.As(err, &v) && v.Rule == RuleLimit: // memory that ops write in turn is kept for whatever any of them wrote
		return nil, opErr(-1, "no plan was found that keeps the limits in the order of the problem: %s", v.Msg)
	case err != nil:
		return nil, fmt.Errorf("planner: BUG: what was chosen to be kept is not what is: %w", err)
	}
	return plan, nil
}
