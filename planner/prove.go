package planner

import (
	"container/heap"
	"math/bits"
	"sort"
)

// set is a set of up to setLimit nodes or buffers.
type set [setLimit / 64]uint64

// setLimit is how many nodes and buffers a prover takes.
const setLimit = 256

func (s set) has(k int32) bool { return s[k>>6]>>(k&63)&1 != 0 }
func (s *set) add(k int32)     { s[k>>6] |= 1 << (k & 63) }
func (s *set) del(k int32)     { s[k>>6] &^= 1 << (k & 63) }

func (s set) holds(t set) bool {
	for w := range s {
		if t[w]&^s[w] != 0 {
			return false
		}
	}
	return true
}

func (s set) meets(t set) bool {
	for w := range s {
		if s[w]&t[w] != 0 {
			return true
		}
	}
	return false
}

func (s set) minus(t set) set {
	for w := range s {
		s[w] &^= t[w]
	}
	return s
}

func (s set) or(t set) set {
	for w := range s {
		s[w] |= t[w]
	}
	return s
}

func (s set) each(f func(int32)) {
	for w, b := range s {
		for ; b != 0; b &= b - 1 {
			f(int32(w*64 + bits.TrailingZeros64(b)))
		}
	}
}

// prover shows that no plan is cheaper than a given cost, or finds one: A* over
// the states (what has run, what is in memory), in which a node may run again
// only if some plan that does so can be cheap enough, by the cuts. What has to
// be made again for the nodes that have not run is added to the cost of a
// state, so states beyond the limit are never entered.
type prover struct {
	m      *model
	budget int64
	below  int64 // only plans that cost less are of interest
	again  set   // nodes that may run again

	ins, outs     []set // by node: buffers
	before, close []set // by node: nodes that must have run; nodes that must not
	users         []set // by buffer: nodes
	final         set
	all           set

	states []proofState
	seen   map[set][]int32 // by what has run: states that none of the others dominates
	queue  proofQueue
	looked int64 // work done
}

// proofState is what has run and what is in memory between two instances. A
// state with more in memory at no higher cost dominates: it can drop the rest
// at any time.
type proofState struct {
	ran, live set
	cost      int64 // of what has run twice or more, that often less one
	from      int32 // the state before, -1 for the first
	node      int32 // that ran in between
	gone      bool  // dominated since it was found
}

type proofItem struct {
	rank  int64 // cost with what is sure to come
	state int32
}

type proofQueue []proofItem

func (q proofQueue) Len() int { return len(q) }
func (q proofQueue) Less(a, b int) bool {
	if q[a].rank != q[b].rank {
		return q[a].rank < q[b].rank
	}
	return q[a].state > q[b].state // the latest first: towards the end
}
func (q proofQueue) Swap(a, b int) { q[a], q[b] = q[b], q[a] }
func (q *proofQueue) Push(x any)   { *q = append(*q, x.(proofItem)) }
func (q *proofQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// provable reports whether a prover takes the model. Optional in-place reuse
// would add a choice to every step.
func provable(m *model) bool {
	if !m.exact || m.n > setLimit || len(m.size) > setLimit {
		return false
	}
	for x := range m.pair {
		if len(m.pair[x]) > 0 {
			return false
		}
	}
	return true
}

func newProver(m *model, budget, below int64, again set) *prover {
	p := &prover{m: m, budget: budget, below: below, again: again, seen: make(map[set][]int32),
		ins: make([]set, m.n), outs: make([]set, m.n), before: make([]set, m.n), close: make([]set, m.n),
		users: make([]set, len(m.size))}
	for i := range m.ins {
		x := int32(i)
		p.all.add(x)
		for _, u := range m.ins[x] {
			p.ins[x].add(u)
			p.users[u].add(x)
		}
		for _, u := range m.outs[x] {
			p.outs[x].add(u)
		}
		for _, y := range m.ctrl[x] {
			p.before[x].add(y)
		}
		for _, y := range m.since[x] {
			p.before[x].add(y)
		}
		for _, y := range m.until[x] {
			p.close[x].add(y)
		}
	}
	for u, f := range m.final {
		if f {
			p.final.add(int32(u))
		}
	}
	return p
}

func (p *prover) bytes(live set) int64 {
	total := p.m.resident
	live.each(func(u int32) { total += p.m.size[u] })
	return total
}

// missing returns the least cost of what must run again from a state, or false
// if something would have to that may not.
func (p *prover) missing(ran, live set) (int64, bool) {
	var cost int64
	var queued set
	ok := true
	var stack [setLimit]int32
	n := 0
	need := func(u int32) {
		if x := p.m.prod[u]; !live.has(u) && ran.has(x) && !queued.has(x) {
			queued.add(x)
			stack[n] = x
			n++
		}
	}
	p.all.minus(ran).each(func(x int32) { p.ins[x].each(need) })
	p.final.each(need)
	for n > 0 {
		n--
		x := stack[n]
		if !p.again.has(x) || p.close[x].meets(ran) {
			ok = false
			break
		}
		cost += p.m.cost[x]
		p.ins[x].each(need)
	}
	return cost, ok
}

// tidy drops what nothing can read any more.
func (p *prover) tidy(ran, live set) set {
	live.each(func(u int32) {
		if !p.final.has(u) && ran.holds(p.users[u]) && !p.users[u].meets(p.again) {
			live.del(u)
		}
	})
	return live
}

// push adds a state unless it can't lead to a plan of interest or is dominated.
func (p *prover) push(st proofState) {
	more, ok := p.missing(st.ran, st.live)
	if !ok || p.m.base+st.cost+more >= p.below {
		return
	}
	list := p.seen[st.ran]
	keep := list[:0]
	for _, k := range list {
		o := &p.states[k]
		p.looked++
		if o.cost <= st.cost && o.live.holds(st.live) {
			return // then none of those before it was dominated by st
		}
		if st.cost <= o.cost && st.live.holds(o.live) {
			o.gone = true
			continue
		}
		keep = append(keep, k)
	}
	k := int32(len(p.states))
	p.states = append(p.states, st)
	p.seen[st.ran] = append(keep, k)
	heap.Push(&p.queue, proofItem{st.cost + more, k})
}

// exec goes on from state k by running node x, after dropping as little as
// makes room for it.
func (p *prover) exec(k, x int32) {
	m := p.m
	s := p.states[k]
	next := proofState{ran: s.ran, cost: s.cost, from: k, node: x}
	if s.ran.has(x) {
		next.cost += m.cost[x]
	}
	next.ran.add(x)
	want := p.bytes(s.live.or(p.outs[x])) + m.work[x] - p.budget
	if want <= 0 {
		next.live = p.tidy(next.ran, s.live.or(p.outs[x]))
		p.push(next)
		return
	}
	// Every smallest set of buffers that makes room: taken in falling order of
	// size, a set is smallest if it is large enough with its last member only.
	var list []int32
	var room int64
	s.live.minus(p.ins[x]).minus(p.outs[x]).each(func(u int32) {
		if m.size[u] > 0 {
			list = append(list, u)
			room += m.size[u]
		}
	})
	sort.SliceStable(list, func(a, b int) bool { return m.size[list[a]] > m.size[list[b]] })
	var drop func(at int, live set, want, room int64)
	drop = func(at int, live set, want, room int64) {
		p.looked++
		if want <= 0 {
			next.live = p.tidy(next.ran, live.or(p.outs[x]))
			p.push(next)
			return
		}
		for ; at < len(list) && room >= want; at++ {
			u := list[at]
			room -= m.size[u]
			less := live
			less.del(u)
			if more, ok := p.missing(next.ran, less.or(p.outs[x])); ok && m.base+next.cost+more < p.below {
				drop(at+1, less, want-m.size[u], room)
			}
		}
	}
	drop(0, s.live, want, room)
}

// run searches until it has done work steps. If known is false they were not
// enough; otherwise seq is the cheapest plan that costs less than below, or nil
// if there is none.
func (p *prover) run(work int64, stop func() bool) (seq []int32, known bool) {
	m := p.m
	p.push(proofState{from: -1, node: -1})
	for turn := 0; len(p.queue) > 0; turn++ {
		k := heap.Pop(&p.queue).(proofItem).state
		s := p.states[k]
		if s.gone {
			continue
		}
		if s.ran == p.all && s.live.holds(p.final) {
			for ; p.states[k].from >= 0; k = p.states[k].from {
				seq = append(seq, p.states[k].node)
			}
			for i, j := 0, len(seq)-1; i < j; i, j = i+1, j-1 {
				seq[i], seq[j] = seq[j], seq[i]
			}
			return seq, true
		}
		p.looked += int64(m.n)
		if p.looked > work || (turn&255 == 255 && stop()) {
			return nil, false
		}
		// A node may as well run at once, and before it is due, if what it frees
		// for good makes up for what it leaves: whatever a plan does next, it can
		// do after it. Only inputs count that can't be made again, since others
		// a plan may drop meanwhile.
		done := false
		for i := 0; i < m.n && !done; i++ {
			x := int32(i)
			if s.ran.has(x) || !s.live.holds(p.ins[x]) || len(m.since[x]) > 0 || len(m.ctrl[x]) > 0 || len(m.ctrlr[x]) > 0 {
				continue
			}
			next := s.live.or(p.outs[x])
			if p.bytes(next)+m.work[x] > p.budget {
				continue
			}
			ran := s.ran
			ran.add(x)
			gain := p.bytes(s.live) - p.bytes(next)
			s.live.minus(p.tidy(ran, s.live)).each(func(u int32) {
				if p.ins[x].has(u) && !p.again.has(m.prod[u]) {
					gain += m.size[u]
				}
			})
			done = gain >= 0
			if done {
				p.exec(k, x)
			}
		}
		if done {
			continue
		}
		for i := 0; i < m.n; i++ {
			x := int32(i)
			if !s.live.holds(p.ins[x]) || !s.ran.holds(p.before[x]) || p.close[x].meets(s.ran) {
				continue
			}
			if s.ran.has(x) && (!p.again.has(x) || s.live.holds(p.outs[x])) {
				continue
			}
			p.exec(k, x)
		}
	}
	return nil, true
}

// mayRunAgain returns the nodes that run twice in some plan that costs less
// than below, as far as the cuts can tell: for every other node a cut that
// has it run twice proves more. steps counts cuts.
func (s *search) mayRunAgain(below int64, cuts []*cut, prices []int64) set {
	m := s.m
	var again set
	for i := 0; i < m.n; i++ {
		x := int32(i)
		if m.once[x] || m.cost[x] >= below-m.base {
			continue
		}
		out := false
		for k, c := range cuts {
			if out || s.stopped() {
				break
			}
			c.twice = x
			// What x costs is paid, so the rest has to stay below the rest.
			enough := below - m.base - m.cost[x]
			res, exact := c.programme(prices[k], 0, enough, 1<<18, s.stopped)
			s.steps += res.work / 64
			if !exact {
				res = c.integer(prices[k], enough, 400, s.stopped)
				s.steps += int64(res.evals) * int64(len(c.net.to)) / 64
			}
			c.twice = -1
			out = res.lower >= enough
		}
		if !out {
			again.add(x)
		}
	}
	return again
}

// prove tries to show that the best plan is optimal, or finds one that is.
func (s *search) prove() {
	if !s.on(solverProof) || s.best == nil || !provable(s.m) || s.key != s.cost || len(s.m.must) > 0 {
		return
	}
	short := s.m.n <= 24 || s.m.shortChain()
	if !short && s.cost-s.lower > s.m.base/200 {
		return // as it would be here
	}
	if s.best != nil && s.cost == s.tried {
		return // and nothing has changed
	}
	s.tried = s.cost
	m := s.m
	// The cuts with the best bounds.
	type candidate struct {
		c     *cut
		price int64
		lower int64
	}
	var list []candidate
	for b := int32(0); b < int32(m.n) && !s.stopped(); b++ {
		c := newCut(m, s.kin, b, s.opt.Budget)
		if r := c.maximise(0, 24); r.possible {
			list = append(list, candidate{c, max(r.over.p, 1), r.lower})
		}
		s.steps += int64(c.evals) * int64(len(c.net.to)) / 64
	}
	sort.SliceStable(list, func(a, b int) bool { return list[a].lower > list[b].lower })
	var cuts []*cut
	var prices []int64
	for k := 0; k < len(list) && k < 4; k++ {
		cuts, prices = append(cuts, list[k].c), append(prices, list[k].price)
	}
	again := s.mayRunAgain(s.cost, cuts, prices)
	if s.stopped() {
		return
	}
	count := 0
	again.each(func(int32) { count++ })
	if count > setLimit/4 && !short {
		return // too much is left to run again
	}
	pr := newProver(m, s.opt.Budget, s.cost, again)
	seq, known := pr.run(min(proofWork, 25*s.allowance()+proofWork/10), s.stopped)
	s.steps += pr.looked / 64
	if !known {
		return
	}
	if seq != nil {
		s.offer(seq, "exact")
	}
	s.lower, s.proof = s.cost, ProofExact
	s.report("exact")
}

// shortChain reports whether most nodes of a problem of up to 64 are stages of a chain: hardly more than the place in
// it and what is kept makes a state then.
func (m *model) shortChain() bool {
	if m.n > 64 {
		return false
	}
	for k := 1; k < m.n; k++ {
		for _, early := range []bool{false, true} {
			if r := newRotor(m, k, early); r != nil && 4*len(r.stages) >= m.n {
				return true
			}
		}
	}
	return false
}

// proofWork bounds the work of a prover, and so its memory.
const proofWork = 20_000_000
