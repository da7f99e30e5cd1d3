package planner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"time"
)

// Baseline is a way of choosing what to recompute that others use, put behind
// the interface of this package so that a graph's owner can see the difference.
type Baseline struct {
	Name string
	What string // one line
	run  func(b *baseline, budget int64) []int32
}

// Baselines lists the policies that PlanBaseline knows. Those that save a set
// of values recompute just in time, which is at least as good as recomputing a
// whole layer at once, and choose their parameter to be the cheapest within the
// budget.
func Baselines() []Baseline {
	return []Baseline{
		{"save-all", "keep everything", func(b *baseline, _ int64) []int32 { return b.m.order }},
		{"uniform", "keep the borders of every k-th group (Megatron-LM uniform; per-layer checkpointing is k = 1)", (*baseline).uniform},
		{"block", "keep only the borders of the first k groups, everything in the others (Megatron-LM block)", (*baseline).block},
		{"sqrt", "keep the borders of every √n-th group (Chen et al. 2016)", (*baseline).sqrt},
		{"save-dots", "keep the outputs of the dearest ops, as policies that save matrix products do", (*baseline).dots},
		{"mincut-knapsack", "keep a minimum cut, and what a knapsack by cost and bytes adds (after PyTorch's partitioner)", (*baseline).knapsack},
		{"lp-rounding", "round what a linear relaxation keeps, then compute what is missing (after Checkmate, Jain et al. 2020)", (*baseline).rounding},
		{"rotor", "dynamic programme over a chain of stages (Beaumont et al. 2019); chains only", (*baseline).rotor},
		{"dtr", "evict online by cost / (bytes × staleness) (Kirisame et al. 2021)", (*baseline).dtr},
	}
}

// ErrOverBudget says that a baseline has no plan within the budget.
var ErrOverBudget = errors.New("planner: the policy has no plan within the budget")

// ErrNoChain says that the problem has not the form that a baseline is for.
var ErrNoChain = errors.New("planner: the problem is no chain of stages")

// PlanBaseline returns the plan of the named policy within budget bytes (≤ 0:
// no limit). boundary is the first op of the backward pass; -1 takes the op at
// the peak of the save-everything plan. Policies of values hold here as well. The error wraps ErrOverBudget if the
// policy cannot meet the budget, and is ErrNoChain if the policy is for chains
// and p is none.
func PlanBaseline(ctx context.Context, p *Problem, name string, budget int64, boundary int) (*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p, err := p.chosen()
	if err != nil {
		return nil, err
	}
	if boundary >= len(p.Ops) {
		return nil, fmt.Errorf("planner: the boundary is op %d of %d", boundary, len(p.Ops))
	}
	for _, bl := range Baselines() {
		if bl.Name != name {
			continue
		}
		start := time.Now()
		s := newSearch(ctx, p, Options{Budget: budget})
		b := &baseline{m: s.m, s: s}
		b.split(boundary)
		seq := bl.run(b, s.opt.Budget)
		if b.err != nil {
			return nil, b.err
		}
		if seq == nil {
			return nil, fmt.Errorf("%w: %s, %d bytes", ErrOverBudget, name, budget)
		}
		plan, err := s.plan(s.again(seq), name)
		if err != nil {
			return nil, err
		}
		if plan.PeakBytes > s.opt.Budget {
			return nil, fmt.Errorf("%w: %s needs %d bytes, the budget is %d", ErrOverBudget, name, plan.PeakBytes, budget)
		}
		plan.Seconds = time.Since(start).Seconds()
		return plan, nil
	}
	return nil, fmt.Errorf("planner: no policy is called %q", name)
}

// PlanSaving returns the plan of a policy that is given by what it saves: of the
// values made before op boundary, those marked in save, and those that may not
// be made twice; everything else is dropped when the backward pass begins and
// computed again just in time. It needs what memory it needs: see
// Plan.PeakBytes.
func PlanSaving(ctx context.Context, p *Problem, save []bool, boundary int) (*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p, err := p.chosen()
	if err != nil {
		return nil, err
	}
	if boundary < 0 || boundary >= len(p.Ops) || len(save) != len(p.Values) {
		return nil, fmt.Errorf("planner: the boundary is op %d of %d, and %d of %d values are said to be saved or not", boundary, len(p.Ops), len(save), len(p.Values))
	}
	start := time.Now()
	s := newSearch(ctx, p, Options{})
	b := &baseline{m: s.m, s: s}
	b.split(boundary)
	keep := make([]bool, len(b.m.size))
	for v, k := range save {
		if u := b.m.buf[v]; u >= 0 && k {
			keep[u] = true
		}
	}
	seq := b.keeping(keep)
	if seq == nil {
		return nil, fmt.Errorf("%w: too much would have to be computed again", ErrOverBudget)
	}
	plan, err := s.plan(seq, "saving")
	if err != nil {
		return nil, err
	}
	plan.BudgetBytes = plan.PeakBytes
	plan.Seconds = time.Since(start).Seconds()
	return plan, nil
}

type baseline struct {
	m        *model
	s        *search
	err      error
	boundary int     // position in m.order of the first backward node
	group    []int32 // by node before the boundary: index of its group
	groups   int
}

// split finds the boundary and the groups before it. A node without a group is
// one of its own.
func (b *baseline) split(boundary int) {
	m := b.m
	b.boundary = -1
	if boundary >= 0 && m.nodeOf[boundary] >= 0 {
		for k, x := range m.order {
			if x == m.nodeOf[boundary] {
				b.boundary = k
			}
		}
	}
	if b.boundary < 0 {
		b.s.sim.run(m.order)
		var top int64 = -1
		for k, bytes := range b.s.sim.mem {
			if bytes > top {
				top, b.boundary = bytes, k
			}
		}
	}
	b.group = make([]int32, m.n)
	names := make(map[string]int32)
	for _, x := range m.order[:max(b.boundary, 0)] {
		name := m.p.Ops[m.op[x]].Group
		if name == "" {
			name = fmt.Sprintf("\x00%d", x)
		}
		id, ok := names[name]
		if !ok {
			id = int32(len(names))
			names[name] = id
		}
		b.group[x] = id
	}
	b.groups = len(names)
}

// keeping returns the sequence of a policy that keeps the given buffers.
func (b *baseline) keeping(keep []bool) []int32 {
	g := newGreedy(b.m, b.m.order)
	g.keep, g.boundary = keep, b.boundary
	return g.run(math.MaxInt64 / 4)
}

// cheapest tries parameters and returns the cheapest sequence within budget.
func (b *baseline) cheapest(budget int64, n int, keep func(k int, into []bool)) []int32 {
	var best []int32
	least := int64(math.MaxInt64)
	into := make([]bool, len(b.m.size))
	step := max(1, n/64) // policies are coarse; so may the search for k be
	for k := 1; k <= n; k += step {
		clear(into)
		keep(k, into)
		seq := b.keeping(into)
		if peak, cost, ok := b.s.sim.run(seq); seq != nil && ok && peak <= budget && cost < least {
			best, least = seq, cost
		}
	}
	return best
}

// border reports whether buffer u leaves its group before the boundary.
func (b *baseline) border(u int32) bool {
	for _, r := range b.m.users[u] {
		if b.group[r] != b.group[b.m.prod[u]] {
			return true
		}
	}
	return false
}

func (b *baseline) every(k int, into []bool) {
	for u := range into {
		into[u] = int(b.group[b.m.prod[u]])%k == 0 && b.border(int32(u))
	}
}

func (b *baseline) uniform(budget int64) []int32 { return b.cheapest(budget, b.groups, b.every) }

func (b *baseline) block(budget int64) []int32 {
	return b.cheapest(budget, b.groups+1, func(k int, into []bool) {
		for u := range into {
			into[u] = int(b.group[b.m.prod[u]]) >= k-1 || b.border(int32(u))
		}
	})
}

func (b *baseline) sqrt(int64) []int32 {
	into := make([]bool, len(b.m.size))
	b.every(max(1, int(math.Round(math.Sqrt(float64(b.groups))))), into)
	return b.keeping(into)
}

func (b *baseline) dots(budget int64) []int32 {
	m := b.m
	list := append([]int32(nil), m.order[:max(b.boundary, 0)]...)
	sort.SliceStable(list, func(i, j int) bool { return m.cost[list[i]] > m.cost[list[j]] })
	var total int64
	for _, x := range list {
		total += m.cost[x]
	}
	return b.cheapest(budget, 20, func(k int, into []bool) {
		var sum int64
		for _, x := range list {
			if sum*20 >= total*int64(21-k) {
				break
			}
			sum += m.cost[x]
			for _, u := range m.outs[x] {
				into[u] = true
			}
		}
	})
}

func (b *baseline) knapsack(budget int64) []int32 {
	m := b.m
	if b.boundary < 0 || b.boundary >= len(m.order) {
		return nil
	}
	c := newCut(m, newKin(m), m.order[b.boundary], budget)
	least := make([]bool, len(m.size))
	if _, ok := c.at(c.maxP); ok {
		c.kept(least)
	}
	var rest []int32
	for u := range m.size {
		if !least[u] && m.size[u] > 0 {
			rest = append(rest, int32(u))
		}
	}
	sort.SliceStable(rest, func(i, j int) bool {
		x, y := rest[i], rest[j]
		return float64(m.cost[m.prod[x]])*float64(m.size[y]) > float64(m.cost[m.prod[y]])*float64(m.size[x])
	})
	var total int64
	for _, u := range rest {
		total += m.size[u]
	}
	return b.cheapest(budget, 33, func(k int, into []bool) {
		copy(into, least)
		var sum int64
		limit := total / 32 * int64(k-1)
		for _, u := range rest {
			if sum+m.size[u] <= limit {
				sum += m.size[u]
				into[u] = true
			}
		}
	})
}

func (b *baseline) rotor(budget int64) []int32 {
	seq, _, ok := bestChain(b.s.sim, b.boundary, budget, 500_000_000)
	if !ok {
		b.err = ErrNoChain
	}
	return seq
}

// rounding keeps what a fractional solution keeps at least half of. The linear
// programme is that of one moment, the first op of the backward pass: its
// optimum mixes the two cuts that meet at the best price, so no general solver
// is needed. As in Checkmate, whatever is then missing is computed just in time,
// and the relaxation is given less than the budget until the rounded plan fits.
func (b *baseline) rounding(budget int64) []int32 {
	m := b.m
	if b.boundary < 0 || b.boundary >= len(m.order) {
		return nil
	}
	k := newKin(m)
	over, under, keep := make([]bool, len(m.size)), make([]bool, len(m.size)), make([]bool, len(m.size))
	for less := int64(0); less < 12; less++ {
		c := newCut(m, k, m.order[b.boundary], budget-budget/20*less)
		best := c.maximise(0, 24)
		if !best.possible || !best.fits {
			return nil
		}
		if _, ok := c.at(best.over.p); !ok {
			return nil
		}
		c.kept(over)
		if _, ok := c.at(best.under.p); !ok {
			return nil
		}
		c.kept(under)
		// over·θ + under·(1-θ) has exactly the memory that there is.
		half := best.over.mem > best.under.mem && 2*(c.free-best.under.mem) >= best.over.mem-best.under.mem
		for u := range keep {
			if keep[u] = under[u]; half {
				keep[u] = over[u]
			}
		}
		seq := b.keeping(keep)
		if peak, _, ok := b.s.sim.run(seq); seq != nil && ok && peak <= budget {
			return seq
		}
	}
	return nil
}

func (b *baseline) dtr(budget int64) []int32 {
	g := newGreedy(b.m, b.m.order)
	g.online = true
	g.used = make([]int32, len(b.m.size))
	return g.run(budget)
}
