package planner

import "math"

// rotor is the dynamic programme for heterogeneous chains (Beaumont et al.,
// "Optimal checkpointing for heterogeneous chains", 2019). A chain is a forward
// pass that is a sequence of stages with one value between each two, and a
// backward pass that handles the stages in reverse, where each handles only
// what its own stage made and what went into it. For every interval of stages
// and every amount of memory it finds the cheapest of
//
//   - run the first stage, keep all that its backward pass reads, do the rest;
//   - run up to some stage keeping nothing but the input, do the rest, come
//     back and do the first part again from the input; what that part passed
//     on may be kept for it, where its last stage then need not run again.
//
// It is optimal among plans that keep what they keep until it is used. Memory
// is counted in slots, rotorSlots of them or fewer where that would be much work.
type rotor struct {
	m      *model
	stages []rotorStage
	slot   int64 // bytes of a slot
	slots  int
	fixed  int64 // bytes that stay whatever is decided: residents, outputs of nodes that run once

	class []int // by stage: stages of one class cost and weigh the same
	table map[rotorKey]*rotorCell
	work  int64      // slots looked at
	keys  [][]string // of intervals, by first and last stage
}

type rotorStage struct {
	fwd, bwd []int32
	in       int32 // the buffer between the stage before and this one, -1 none
	fwdCost  int64
	bwdCost  int64
	input    int64 // bytes of in
	output   int64 // bytes of what it passes on
	saved    int64 // bytes that its backward pass reads, besides in
	fwdPeak  int64 // bytes while it runs, besides in
	bwdPeak  int64 // bytes while its backward pass runs, besides in
}

// rotorCell is an interval of stages: least cost and choice by slots.
type rotorCell struct {
	cost   []int64
	choice []int16 // 0 keep all of the first stage, k > 0 come back to the first k stages, -1-k the same and keep what they pass on, -1 impossible
}

// rotorKey is the classes of an interval's stages, and its context.
type rotorKey struct {
	stages  string
	context byte
}

const rotorSlots = 500

// newRotor finds the chain in m; boundary is the position in m.order of the
// first node of the backward pass. What the backward pass does with a value
// between two stages may belong to either: to the earlier one if early is set.
// It returns nil if m is not a chain.
func newRotor(m *model, boundary int, early bool) *rotor {
	if boundary <= 0 || boundary >= len(m.order) {
		return nil
	}
	for x := range m.until {
		if len(m.until[x]) > 0 || len(m.ctrl[x]) > 0 {
			return nil
		}
	}
	r := &rotor{m: m, fixed: m.resident, table: make(map[rotorKey]*rotorCell)}
	place := make([]int, m.n)
	for k, x := range m.order {
		place[x] = k
	}
	// Where only one buffer with bytes passes from before a position to what
	// follows it in the forward pass, a stage ends.
	last := make([]int, len(m.size)) // last reader in the forward pass
	for u := range m.size {
		last[u] = -1
		for _, x := range m.users[u] {
			if place[x] < boundary {
				last[u] = max(last[u], place[x])
			}
		}
	}
	stageOf := make([]int, m.n)
	through := make([]int, boundary+1)
	which := make([]int32, boundary+1)
	for u := range m.size {
		if m.size[u] == 0 || place[m.prod[u]] >= boundary {
			continue
		}
		for k := place[m.prod[u]] + 1; k <= last[u]; k++ {
			through[k]++
			which[k] = int32(u)
		}
	}
	st := rotorStage{in: -1}
	for k := 0; k < boundary; k++ {
		if k > 0 && through[k] == 1 && which[k] != st.in {
			r.stages = append(r.stages, st)
			st = rotorStage{in: which[k], input: m.size[which[k]]}
		}
		x := m.order[k]
		stageOf[x] = len(r.stages)
		st.fwd = append(st.fwd, x)
		st.fwdCost += m.cost[x]
	}
	r.stages = append(r.stages, st)
	if len(r.stages) < 2 {
		return nil
	}
	// The backward pass: each node belongs to the stage at hand or one before.
	at := len(r.stages) - 1
	for k := boundary; k < len(m.order); k++ {
		x := m.order[k]
		// What passes from stage s to the next may be read by both.
		lo, hi := 0, at
		for _, u := range m.ins[x] {
			p := m.prod[u]
			if place[p] >= boundary || m.size[u] == 0 || m.once[p] {
				continue
			}
			s := stageOf[p]
			lo = max(lo, s)
			if s+1 < len(r.stages) && r.stages[s+1].in == u {
				s++
			}
			hi = min(hi, s)
		}
		if hi < lo {
			return nil
		}
		if at = hi; early && lo > 0 {
			at = lo
		}
		r.stages[at].bwd = append(r.stages[at].bwd, x)
		r.stages[at].bwdCost += m.cost[x]
		stageOf[x] = at
	}
	for i := range r.stages {
		r.measure(i, boundary, place, stageOf)
	}
	for x := 0; x < m.n; x++ {
		if m.once[x] && place[x] < boundary {
			for _, u := range m.outs[x] {
				r.fixed += m.size[u]
			}
		}
	}
	r.classify()
	return r
}

// measure finds the bytes of stage i from its nodes in order.
func (r *rotor) measure(i, boundary int, place, stageOf []int) {
	m := r.m
	st := &r.stages[i]
	kept := func(u int32) bool { // read by the backward pass of the stage
		for _, x := range m.users[u] {
			if place[x] >= boundary && stageOf[x] == i {
				return true
			}
		}
		return m.final[u]
	}
	next := int32(-1)
	if i+1 < len(r.stages) {
		next = r.stages[i+1].in
		st.output = m.size[next]
	}
	var live int64
	left := make(map[int32]int)
	for _, x := range st.fwd {
		for _, u := range m.outs[x] {
			live += m.size[u]
			for _, y := range m.users[u] {
				if place[y] < boundary {
					left[u]++
				}
			}
			if kept(u) && u != next {
				st.saved += m.size[u]
			}
		}
		st.fwdPeak = max(st.fwdPeak, live+m.work[x])
		for _, u := range append(append([]int32(nil), m.ins[x]...), m.outs[x]...) {
			if contains(m.ins[x], u) {
				left[u]--
			}
			if u != st.in && left[u] <= 0 && !kept(u) && u != next && stageOf[m.prod[u]] == i && place[m.prod[u]] < boundary {
				live -= m.size[u]
				left[u] = math.MaxInt32
			}
		}
	}
	if next >= 0 && kept(next) {
		st.saved += m.size[next]
	}
	// Backward: what was saved, what comes from the stages after, what it makes.
	live = st.saved
	for u := range m.size {
		if p := place[m.prod[u]]; p >= boundary && len(st.bwd) > 0 && p < place[st.bwd[0]] {
			for _, x := range m.users[u] {
				if place[x] >= place[st.bwd[0]] {
					live += m.size[u]
					break
				}
			}
		}
	}
	gone := make(map[int32]bool)
	for _, x := range st.bwd {
		for _, u := range m.outs[x] {
			live += m.size[u]
		}
		st.bwdPeak = max(st.bwdPeak, live+m.work[x])
		for _, u := range append(append([]int32(nil), m.ins[x]...), m.outs[x]...) {
			if gone[u] || m.final[u] || u == st.in || (place[m.prod[u]] < boundary && stageOf[m.prod[u]] != i) {
				continue
			}
			end := place[x]
			for _, y := range m.users[u] {
				end = max(end, place[y])
			}
			if end == place[x] {
				gone[u] = true
				live -= m.size[u]
			}
		}
	}
}

// classify gives stages of equal cost and bytes one class, so that intervals of
// the same classes are solved once.
func (r *rotor) classify() {
	type shape struct {
		c [2]int64
		b [5]int64
		p [2]bool
	}
	known := make(map[shape]int)
	for i := range r.stages {
		s := &r.stages[i]
		k := shape{[2]int64{s.fwdCost, s.bwdCost}, [5]int64{s.input, s.output, s.saved, s.fwdPeak, s.bwdPeak}, [2]bool{r.passes(i), r.reads(i)}}
		id, ok := known[k]
		if !ok {
			id = len(known)
			known[k] = id
		}
		r.class = append(r.class, id)
	}
	n := len(r.stages)
	r.keys = make([][]string, n)
	for s := range r.keys {
		r.keys[s] = make([]string, n)
		b := make([]byte, 0, 2*n)
		for t := s; t < n; t++ {
			b = append(b, byte(r.class[t]), byte(r.class[t]>>8))
			r.keys[s][t] = string(b)
		}
	}
}

// need rounds bytes up to slots.
func (r *rotor) need(bytes int64) int { return int((bytes + r.slot - 1) / r.slot) }

const rotorNever = math.MaxInt64 / 4

// Contexts of an interval.
const (
	rotorLast = 1 << iota // nobody else needs its input, so that may be dropped once its first stage has it no more
	rotorDone             // its last stage has run before: where that stage's backward pass reads nothing of it, it need not run again
	rotorHave             // what its last stage passes on is in memory beside the interval's own, and is all that its backward pass reads
)

// frees returns the slots that the input of stage s gives back after the stage
// has run, in a context.
func (r *rotor) frees(s int, context byte) int {
	if context&rotorLast == 0 || r.reads(s) {
		return 0
	}
	return r.need(r.stages[s].input)
}

// reads reports whether the input of stage s is needed after the stage has run.
func (r *rotor) reads(s int) bool {
	in := r.stages[s].in
	if in < 0 || r.m.final[in] {
		return true
	}
	for _, x := range r.stages[s].bwd {
		if contains(r.m.ins[x], in) {
			return true
		}
	}
	return false
}

// keeps returns the slots that keeping all of stage s takes, and the context of
// what follows it.
func (r *rotor) keeps(s int, context byte) (slots int, rest byte) {
	st := &r.stages[s]
	slots = r.need(st.saved)
	rest = context &^ rotorLast
	if !r.passes(s) {
		slots += r.need(st.output)
		rest |= rotorLast
	}
	return slots - r.frees(s, context), rest
}

// cell solves an interval in a context. Memory does not include the input of
// stage s.
func (r *rotor) cell(s, t int, context byte) *rotorCell {
	key := rotorKey{r.keys[s][t], context}
	if c, ok := r.table[key]; ok {
		return c
	}
	c := &rotorCell{cost: make([]int64, r.slots+1), choice: make([]int16, r.slots+1)}
	r.table[key] = c
	st := &r.stages[s]
	for m := range c.cost {
		c.cost[m], c.choice[m] = rotorNever, -1
	}
	low := max(r.need(st.fwdPeak), r.need(st.bwdPeak)-r.frees(s, context))
	if s == t {
		cost := st.fwdCost + st.bwdCost
		if r.rests(s, context) {
			low, cost = r.need(st.bwdPeak)-r.frees(s, context), st.bwdCost
			if context&rotorHave != 0 {
				low -= r.need(st.output)
			}
			low = max(low, 0)
		}
		for m := low; m <= r.slots; m++ {
			c.cost[m], c.choice[m] = cost, 0
		}
		return c
	}
	slots, follow := r.keeps(s, context)
	rest := r.cell(s+1, t, follow)
	for m := max(low, slots); m <= r.slots; m++ {
		if x := rest.cost[min(m-slots, r.slots)]; x < rotorNever {
			c.cost[m], c.choice[m] = st.fwdCost+st.bwdCost+x, 0
		}
	}
	var run int64
	peak := 0
	for k := s; k < t; k++ {
		run += r.stages[k].fwdCost
		before := 0
		if k > s {
			before = r.need(r.stages[k].input)
		}
		peak = max(peak, before+r.need(r.stages[k].fwdPeak))
		out := r.need(r.stages[k].output)
		try := func(a, b *rotorCell, held int, choice int16) {
			r.work += int64(r.slots)
			for m := max(peak, out); m <= r.slots; m++ {
				x, y := a.cost[m-out], b.cost[m-held]
				if x < rotorNever && y < rotorNever && run+x+y < c.cost[m] {
					c.cost[m], c.choice[m] = run+x+y, choice
				}
			}
		}
		part := context&rotorLast | rotorDone
		try(r.cell(k+1, t, context|rotorLast), r.cell(s, k, part), 0, int16(k-s+1))
		if last := &r.stages[k]; last.saved == last.output && r.passes(k) {
			try(r.cell(k+1, t, context&^rotorLast), r.cell(s, k, part|rotorHave), out, -int16(k-s+2))
		}
	}
	return c
}

// rests reports whether stage t, the last of an interval, need not run in a
// context before its backward pass.
func (r *rotor) rests(t int, context byte) bool {
	return context&rotorHave != 0 || (context&rotorDone != 0 && r.stages[t].saved == 0)
}

// passes reports whether what stage s passes on is among what its backward
// pass reads.
func (r *rotor) passes(s int) bool {
	if s+1 >= len(r.stages) {
		return true
	}
	u := r.stages[s+1].in
	for _, x := range r.stages[s].bwd {
		if contains(r.m.ins[x], u) {
			return true
		}
	}
	return r.m.final[u]
}

// bestChain returns the cheapest sequence that the programme finds within
// budget, or nil; ok is false if m is not a chain. limit is about how many slots
// of intervals it may look at, and work is how many it did. The programme rounds bytes up to slots, so it is also asked for somewhat
// more than the budget.
func bestChain(sim *simulator, boundary int, budget, limit int64) (best []int32, work int64, ok bool) {
	least := int64(math.MaxInt64)
	for _, early := range []bool{false, true} {
		r := newRotor(sim.m, boundary, early)
		if r == nil {
			continue
		}
		ok = true
		margins := []int64{0, 1, 2, 4, 8, 16, 32, 64}
		// Of each interval there are some four contexts, and each end of a
		// first part is tried in two ways.
		n := int64(len(r.stages))
		slots := limit / 2 / int64(len(margins)) / (n*n*n + 1)
		for _, more := range margins {
			seq := r.solve(budget+budget/100*more, max(rotorSlots/16, min(slots, rotorSlots)))
			work += r.work
			if peak, cost, legal := sim.run(seq); seq != nil && legal && peak <= budget && cost < least {
				best, least = seq, cost
			}
			if work > limit {
				break
			}
		}
	}
	return best, work, ok
}

// solve returns the cheapest sequence for a budget, or nil, with memory in the
// given number of slots.
func (r *rotor) solve(budget, slots int64) []int32 {
	free := budget - r.fixed
	n := len(r.stages)
	if free < 0 || n > 1<<14 {
		return nil
	}
	var all int64
	for u := range r.m.size {
		all += r.m.size[u]
	}
	free = min(free, 4*all)
	r.slot = max(1, (free+slots-1)/slots)
	r.slots = int(free / r.slot)
	clear(r.table)
	r.work = 0
	if r.cell(0, n-1, 0).cost[r.slots] >= rotorNever {
		return nil
	}
	var seq []int32
	ran := make([]bool, r.m.n)
	forward := func(s int) {
		for _, x := range r.stages[s].fwd {
			if !ran[x] || !r.m.once[x] {
				ran[x] = true
				seq = append(seq, x)
			}
		}
	}
	var walk func(s, t, m int, context byte)
	walk = func(s, t, m int, context byte) {
		k := int(r.cell(s, t, context).choice[m])
		if k == 0 {
			if s < t || !r.rests(s, context) {
				forward(s)
			}
			if s < t {
				slots, rest := r.keeps(s, context)
				walk(s+1, t, min(m-slots, r.slots), rest)
			}
			seq = append(seq, r.stages[s].bwd...)
			return
		}
		next, part, held := context|rotorLast, context&rotorLast|rotorDone, 0
		if k < 0 {
			k = -1 - k
			held = r.need(r.stages[s+k-1].output)
			next, part = context&^rotorLast, part|rotorHave
		}
		for j := s; j < s+k; j++ {
			forward(j)
		}
		walk(s+k, t, m-r.need(r.stages[s+k-1].output), next)
		walk(s, s+k-1, m-held, part)
	}
	walk(0, n-1, r.slots, 0)
	return withoutIdle(r.m, seq)
}

// withoutIdle removes the copies that nothing reads, and what only they needed.
func withoutIdle(m *model, seq []int32) []int32 {
	t := newTape(m, seq)
	for p := int32(len(t.seq)) - 1; p >= 0; p-- {
		if len(t.runs[t.node[t.seq[p]]]) > 1 && t.idle(p) {
			if _, ok := t.tryRemove(p, 0); ok {
				t.remove(p)
			}
		}
	}
	return t.nodes()
}
