package planner

import (
	"context"
	"errors"
	"math"
	"slices"
	"sort"
	"time"
)

// This file plans moves to the host. Orders come from the other solvers, at several budgets between
// what was asked for and what keeping everything takes; on each of them memory that waits between two
// uses is moved away until the peak fits. So what is cheap to compute again is recomputed and the rest
// moves, and the cheapest of the combinations is the plan.

// onDevice is p without the link. What must be offloaded is computed once and kept there.
func onDevice(p *Problem) *Problem {
	q := *p
	q.Offload = nil
	q.Values = slices.Clone(p.Values)
	for v := range q.Values {
		switch q.Values[v].Policy {
		case MustOffload:
			q.Values[v].Policy = MustSave
		case PreferOffload:
			q.Values[v].Policy = PolicyNone
		}
	}
	return &q
}

// noLink reports a value that must be offloaded by a problem without a link.
func noLink(p *Problem) error {
	for v := range p.Values {
		if p.Values[v].Policy == MustOffload {
			return valueErr(v, "%s must be offloaded, and the problem has no link to host memory (Offload)", p.valueName(v))
		}
	}
	return nil
}

// offloadShares are the budgets whose plans moves start from, as parts of the way from the budget asked
// for to the peak of keeping everything.
var offloadShares = [...]float64{0, 0.1, 0.25, 0.5, 0.75}

// solveOffload is Solve for problems with a link to the host.
func solveOffload(ctx context.Context, p *Problem, opt Options) (*Plan, error) {
	start := time.Now()
	q := onDevice(p)
	all, err := saveAll(q)
	if err != nil {
		return nil, err
	}
	budget := opt.Budget
	if budget <= 0 {
		budget = unlimited
	}
	inner := opt
	inner.Layout, inner.Progress = false, nil
	if inner.Steps > 0 {
		inner.Steps = max(1, inner.Steps/int64(len(offloadShares)))
	}
	if inner.TimeLimit > 0 {
		inner.TimeLimit /= time.Duration(len(offloadShares))
	}
	var best *Plan
	var steps int64
	var infeasible *InfeasibleError
	report := func(pl *Plan) {
		if opt.Progress != nil {
			opt.Progress(Progress{Solver: pl.Solver, Elapsed: time.Since(start), Steps: steps, Best: pl.Cost, LowerBound: pl.BaseCost,
				Gap: float64(pl.Cost-pl.BaseCost) / float64(max(pl.BaseCost, 1))})
		}
	}
	try := func(from *Plan) {
		if best != nil && from.Cost >= best.Cost {
			return // waiting only adds
		}
		moved := moveAway(p, from, budget)
		if moved != nil && (best == nil || moved.Cost < best.Cost) {
			best = moved
			report(best)
		}
	}
	try(all)
	for _, share := range offloadShares {
		level := budget
		if all.PeakBytes > budget {
			level += int64(share * float64(all.PeakBytes-budget))
		}
		if best != nil && best.Cost == all.BaseCost || ctx.Err() != nil {
			break
		}
		inner.Budget = level
		from, err := Solve(ctx, q, inner)
		var inf *InfeasibleError
		switch {
		case errors.As(err, &inf):
			if infeasible == nil {
				infeasible = inf
			}
			continue
		case err != nil:
			return nil, err
		}
		steps += from.Steps
		try(from)
	}
	if best == nil {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		low, err := minOffload(ctx, p, inner)
		if err != nil {
			return nil, err
		}
		if low.PeakBytes > budget {
			if infeasible == nil {
				infeasible = &InfeasibleError{Budget: opt.Budget, LowerBoundBytes: newModel(q).footprint()}
			}
			infeasible.MinBudget = low.PeakBytes
			return nil, infeasible
		}
		best = low
	}
	best.BudgetBytes, best.Steps, best.Seed = max(opt.Budget, 0), steps, opt.Seed
	if opt.Layout {
		for asked := budget; ; budget -= max(1, best.ArenaBytes-asked) {
			if moved := moveAway(p, best, budget); moved != nil {
				best = moved
			} else {
				return nil, &InfeasibleError{Budget: opt.Budget, MinBudget: best.ArenaBytes, LowerBoundBytes: newModel(q).footprint()}
			}
			if err := layout(p, best, opt.Align); err != nil {
				return nil, err
			}
			if best.ArenaBytes <= asked {
				break
			}
		}
		best.BudgetBytes, best.Steps, best.Seed = max(opt.Budget, 0), steps, opt.Seed
	}
	if lower := offloadBound(ctx, p, q, budget); lower > best.LowerBound {
		best.LowerBound, best.Proof = lower, ProofCut
		best.finish()
	}
	best.Seconds = time.Since(start).Seconds()
	return best, nil
}

// offloadBound returns a lower bound on the cost of plans of p within a budget; q is p without its link. At the first
// run of any op, what is needed later is in memory, is made again, or is away. For any number of bytes y, either at most
// y bytes are away then, and the plan costs what the cut says of a budget that is larger by y, or more are, and the link
// has taken them out before and brings them back after: that takes time.
func offloadBound(ctx context.Context, p, q *Problem, budget int64) int64 {
	s := newSearch(ctx, q, Options{})
	within := func(y int64) int64 {
		s.lower, s.opt.Budget = s.m.base, budget+min(y, math.MaxInt64/4)
		s.bound()
		if !s.swept.possible {
			return math.MaxInt64
		}
		return s.lower
	}
	beyond := func(y int64) int64 {
		const slack = 1 - 1e-9 // of floating point
		t := float64(y) * (1/p.Offload.BytesPerNsOut + 1/p.Offload.BytesPerNsIn) * slack
		return int64(min(t, maxTotal))
	}
	host := p.Offload.HostBytes
	lower := s.m.base
	if l := within(host); l < math.MaxInt64 {
		lower = max(lower, l)
	}
	// One falls with y and the other rises.
	const looks = 12
	all, _, _ := s.sim.run(s.m.order) // no more is ever away
	for lo, hi, k := int64(0), min(host, all), 0; lo < hi && k < looks && ctx.Err() == nil; k++ {
		y := lo + (hi-lo)/2
		a, b := within(y), beyond(y)
		lower = max(lower, min(a, b))
		if a > b {
			lo = y + 1
		} else {
			hi = y
		}
	}
	return lower
}

// minOffload looks for the smallest peak with moves, on the order of keeping everything and on that of
// the smallest peak without moves.
func minOffload(ctx context.Context, p *Problem, opt Options) (*Plan, error) {
	q := onDevice(p)
	all, err := saveAll(q)
	if err != nil {
		return nil, err
	}
	low, err := MinBudgetOptions(ctx, q, opt)
	if err != nil {
		return nil, err
	}
	floor := newModel(q).footprint()
	var best *Plan
	for _, from := range []*Plan{all, low} {
		lo, hi := floor, from.PeakBytes
		if pl := moveAway(p, from, hi); pl != nil && (best == nil || pl.PeakBytes < best.PeakBytes) {
			best = pl
		}
		for lo < hi && hi-lo > from.PeakBytes/256 {
			mid := lo + (hi-lo)/2
			pl := moveAway(p, from, mid)
			if pl == nil {
				lo = mid + 1
				continue
			}
			hi = min(mid, pl.PeakBytes)
			if best == nil || pl.PeakBytes < best.PeakBytes {
				best = pl
			}
		}
	}
	if best == nil {
		return nil, immovable(p) // all fits in hi but what must be offloaded
	}
	return best, nil
}

// immovable reports that what must be offloaded can't be, at any budget.
func immovable(p *Problem) error {
	first, n, bytes := -1, 0, int64(0)
	for v := range p.Values {
		if p.Values[v].Policy != MustOffload {
			continue
		}
		if first < 0 {
			first = v
		}
		n, bytes = n+1, bytes+p.Values[v].Bytes
	}
	return valueErr(first, "%s must be offloaded, as must %d others (%d bytes in all), and no order was found in which the link can move them: host memory has %d bytes, and each has to go and return between two of its uses",
		p.valueName(first), n-1, bytes, p.Offload.HostBytes)
}

// gap is a wait of memory between two uses.
type gap struct {
	stretch   int
	out, use  int // positions
	out2, in2 int64
	bytes     int64
	value     int
	must      bool
	prefer    bool
}

// mover chooses moves on one order.
type mover struct {
	p      *Problem
	order  []int
	list   []stretch
	gaps   []gap
	time   []int64 // by position: when its op would start without waits
	mem    []int64 // by position, without moves
	budget int64
	host   int64

	chosen []int // gaps
	in     []bool
	held   []int64 // by position: host memory that chosen gaps take
}

// moveAway adds moves to a plan until its peak is within budget; nil: it can't be. The plan itself is
// not changed.
func moveAway(p *Problem, from *Plan, budget int64) *Plan {
	m := &mover{p: p, order: from.Order, list: stretches(p, from.Order), budget: budget, host: p.Offload.HostBytes}
	m.measure()
	m.find()
	ts, ok := m.choose()
	if !ok {
		return nil
	}
	pl := &Plan{Order: slices.Clone(from.Order), Transfers: ts, Solver: from.Solver, Proof: ProofBase}
	if len(ts) > 0 {
		pl.Solver += "+offload"
	}
	rep, err := Check(p, pl, budget)
	if err != nil {
		return nil // a must that this order can't meet, or a peak that only Check sees
	}
	pl.fill(rep)
	pl.Stall, pl.HostBytes, pl.LowerBound = rep.Stall, rep.HostBytes, rep.BaseCost
	pl.finish()
	return pl
}

// measure fills in time and memory without moves.
func (m *mover) measure() {
	n := len(m.order)
	m.time, m.mem = make([]int64, n+1), make([]int64, n+1)
	step := make([]int64, n+2)
	for k := range m.list {
		s := &m.list[k]
		from := s.start
		if s.taken {
			from++
		}
		if from = max(from, 0); from <= s.last {
			step[from] += s.bytes
			step[s.last+1] -= s.bytes
		}
	}
	var live int64
	for pos, i := range m.order {
		live += step[pos]
		m.mem[pos] = live + m.p.Ops[i].Workspace
		m.time[pos+1] = m.time[pos] + m.p.Ops[i].Cost
	}
}

// copyTime is how long bytes take over a link.
func copyTime(bytes int64, speed float64) int64 {
	return int64(min(math.Ceil(float64(bytes)/speed), maxTotal))
}

// find lists the gaps.
func (m *mover) find() {
	al := aliasing(m.p)
	must, prefer := make([]bool, len(al.size)), make([]bool, len(al.size))
	for v := range m.p.Values {
		switch m.p.Values[v].Policy {
		case MustOffload:
			must[al.storage[v]] = true
		case PreferOffload:
			prefer[al.storage[v]] = true
		}
	}
	for k := range m.list {
		s := &m.list[k]
		if s.start < 0 || s.bytes == 0 {
			continue
		}
		st := al.storage[s.value]
		for j := 1; j < len(s.uses); j++ {
			if s.uses[j] > s.uses[j-1]+1 || must[st] {
				m.gaps = append(m.gaps, gap{stretch: k, value: s.value, out: s.uses[j-1], use: s.uses[j], bytes: s.bytes, must: must[st], prefer: prefer[st],
					out2: copyTime(s.bytes, m.p.Offload.BytesPerNsOut), in2: copyTime(s.bytes, m.p.Offload.BytesPerNsIn)})
			}
		}
	}
	m.in = make([]bool, len(m.gaps))
	m.held = make([]int64, len(m.order))
}

// slack is the time of a gap that no copy needs.
func (m *mover) slack(g *gap) int64 { return m.time[g.use] - m.time[g.out+1] - g.out2 - g.in2 }

// choose adds gaps until the peak fits, then drops those that turn out not to be needed.
func (m *mover) choose() ([]Transfer, bool) {
	// What must move does so in its longest gap.
	longest := map[int]int{}
	for k := range m.gaps {
		if g := &m.gaps[k]; g.must {
			if old, ok := longest[g.stretch]; !ok || m.slack(g) > m.slack(&m.gaps[old]) {
				longest[g.stretch] = k
			}
		}
	}
	for k := range m.gaps {
		if old, ok := longest[m.gaps[k].stretch]; ok && old == k {
			m.add(k)
		}
	}
	ts, bad := m.place()
	for bad >= 0 {
		k := m.candidate(bad)
		if k < 0 {
			return nil, false
		}
		m.add(k)
		ts, bad = m.place()
	}
	cost := m.cost(ts)
	if len(m.chosen)*len(m.order) > 50_000_000 {
		return ts, true
	}
	for j := len(m.chosen) - 1; j >= 0; j-- {
		if m.gaps[m.chosen[j]].must {
			continue
		}
		old := slices.Clone(m.chosen)
		m.chosen = slices.Delete(m.chosen, j, j+1)
		fewer, bad := m.place()
		if bad < 0 {
			if c := m.cost(fewer); c <= cost {
				ts, cost = fewer, c
				continue
			}
		}
		m.chosen = old
	}
	return ts, true
}

func (m *mover) add(k int) {
	m.chosen, m.in[k] = append(m.chosen, k), true
	g := &m.gaps[k]
	for pos := g.out; pos <= g.use; pos++ {
		m.held[pos] += g.bytes
	}
}

// hosts tells whether there is host memory for one more gap.
func (m *mover) hosts(g *gap) bool {
	return slices.Max(m.held[g.out:g.use+1]) <= m.host-g.bytes
}

// candidate is the best gap to add where memory at pos is too large, or -1.
func (m *mover) candidate(pos int) int {
	best := -1
	better := func(a, b *gap) bool {
		if a.prefer != b.prefer {
			return a.prefer
		}
		sa, sb := m.slack(a), m.slack(b)
		if (sa >= 0) != (sb >= 0) {
			return sa >= 0
		}
		if sa < 0 {
			// Least wait for what it frees.
			return float64(-sa)*float64(b.bytes) < float64(-sb)*float64(a.bytes)
		}
		if a.bytes != b.bytes {
			return a.bytes > b.bytes
		}
		return sa > sb
	}
	for k := range m.gaps {
		g := &m.gaps[k]
		if m.in[k] || g.out >= pos || pos >= g.use || !m.hosts(g) {
			continue
		}
		if best < 0 || better(g, &m.gaps[best]) {
			best = k
		}
	}
	return best
}

// place gives the chosen gaps their positions: copies out end, and copies back start, where nothing has
// to wait, unless memory is too small for that. bad is a position that stays too large, or -1.
func (m *mover) place() (ts []Transfer, bad int) {
	n := len(m.order)
	type job struct {
		g        *gap
		free, in int
		end      int64 // of the copy out
	}
	jobs := make([]job, len(m.chosen))
	for j, k := range m.chosen {
		jobs[j].g = &m.gaps[k]
	}
	sort.SliceStable(jobs, func(a, b int) bool { return jobs[a].g.out < jobs[b].g.out })
	var link int64
	for j := range jobs {
		g := jobs[j].g
		link = max(link, m.time[g.out+1]) + g.out2
		jobs[j].end = link
		jobs[j].free = min(g.use, max(g.out+1, sort.Search(n, func(q int) bool { return m.time[q] >= link })))
	}
	byUse := make([]int, len(jobs))
	for j := range byUse {
		byUse[j] = j
	}
	sort.SliceStable(byUse, func(a, b int) bool { return jobs[byUse[a]].g.use > jobs[byUse[b]].g.use })
	link = math.MaxInt64
	for _, j := range byUse {
		g := jobs[j].g
		link = min(link, m.time[g.use]) - g.in2
		at := link
		jobs[j].in = min(g.use, max(jobs[j].free, sort.Search(n, func(q int) bool { return m.time[q] > at })-1))
	}
	// Memory at every position, moved what moves without waits; then what has to wait.
	step := make([]int64, n+2)
	for _, x := range jobs {
		step[x.free] -= x.g.bytes
		step[x.in] += x.g.bytes
	}
	starts := make([][]int, n+1) // jobs by the position after their Out
	for j := range jobs {
		starts[jobs[j].g.out+1] = append(starts[jobs[j].g.out+1], j)
	}
	var active []int
	var moved int64
	bad = -1
	for pos := range n {
		moved += step[pos]
		active = append(active, starts[pos]...)
		active = slices.DeleteFunc(active, func(j int) bool { return jobs[j].g.use <= pos })
		over := m.mem[pos] + moved - m.budget
		if over <= 0 {
			continue
		}
		// Copies that are on their way out first, the earliest to end; then copies back, the last to be read.
		sort.SliceStable(active, func(a, b int) bool { return jobs[active[a]].end < jobs[active[b]].end })
		for _, j := range active {
			if x := &jobs[j]; over > 0 && x.free > pos {
				// Its memory goes here instead of at x.free.
				step[x.free] += x.g.bytes
				x.free = pos
				moved -= x.g.bytes
				over -= x.g.bytes
			}
		}
		sort.SliceStable(active, func(a, b int) bool { return jobs[active[a]].g.use > jobs[active[b]].g.use })
		for _, j := range active {
			if x := &jobs[j]; over > 0 && x.in <= pos {
				// It comes back later.
				moved -= x.g.bytes
				over -= x.g.bytes
				x.in = pos + 1
				step[x.in] += x.g.bytes
			}
		}
		if over > 0 && bad < 0 {
			bad = pos
		}
	}
	for _, x := range jobs {
		s := m.list[x.g.stretch]
		ts = append(ts, Transfer{Value: s.value, Start: s.start, Out: x.g.out, Free: x.free, In: x.in, Use: x.g.use})
	}
	return ts, bad
}

// cost is the time of the order with moves: the clock through ops and both directions of the link.
func (m *mover) cost(ts []Transfer) int64 {
	if len(ts) == 0 {
		return m.time[len(m.order)]
	}
	type event struct{ pos, kind, k int } // kinds in the order in which they happen: free, back, use, out
	var events []event
	for k, t := range ts {
		events = append(events, event{t.Free, 0, k}, event{t.In, 1, k}, event{t.Use, 2, k}, event{t.Out, 3, k})
	}
	sort.SliceStable(events, func(a, b int) bool {
		x, y := events[a], events[b]
		if x.pos != y.pos {
			return x.pos < y.pos
		}
		return x.kind < y.kind
	})
	gone, there := make([]int64, len(ts)), make([]int64, len(ts))
	size := aliasing(m.p)
	bytes := func(k int) int64 { return size.size[size.storage[ts[k].Value]] }
	var now, outFree, inFree int64
	next := 0
	for pos, i := range m.order {
		ran := false
		for ; next < len(events) && events[next].pos == pos; next++ {
			e := events[next]
			if e.kind == 3 && !ran {
				now += m.p.Ops[i].Cost
				ran = true
			}
			switch e.kind {
			case 0:
				now = max(now, gone[e.k])
			case 1:
				there[e.k] = max(now, inFree, gone[e.k]) + copyTime(bytes(e.k), m.p.Offload.BytesPerNsIn)
				inFree = there[e.k]
			case 2:
				now = max(now, there[e.k])
			case 3:
				gone[e.k] = max(now, outFree) + copyTime(bytes(e.k), m.p.Offload.BytesPerNsOut)
				outFree = gone[e.k]
			}
		}
		if !ran {
			now += m.p.Ops[i].Cost
		}
	}
	return now
}
