package planner

// alike knows which nodes of a model play the same part in repeated layers. Two
// nodes are of one class if they cost and weigh the same, and so do what they
// read and who reads them, in the same places, some steps far. The k-th nodes
// of all classes, counted in the order of their first runs (forwards or
// backwards, as the pass runs), are an instance: a layer with its backward part.
//
// Nothing that is carried over from one instance to another relies on this: the
// simulator judges the result as it judges any sequence.
type alike struct {
	class   []int32   // by node, -1 for one that no other is like
	rank    []int32   // by node: place among its class
	members [][]int32 // by class, in order of first runs
	shift   []int32   // by class: from one instance to the next, ranks grow by this; 0 if that is not known
	anchors []int32   // classes that have one member in each instance, one for each direction
}

const (
	alikeHops  = 4 // how far the surroundings of like nodes are alike
	alikeLeast = 4 // instances that are worth it
)

// blend is a step of a hash.
func blend(h, x uint64) uint64 {
	h = (h ^ x) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}

// newAlike finds the repeated layers of m, or returns nil if there are none.
func newAlike(m *model) *alike {
	colour, next := make([]uint64, m.n), make([]uint64, m.n)
	bit := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	for i := range colour {
		h := blend(blend(1, uint64(m.cost[i])), uint64(m.bias[i]))
		h = blend(blend(h, uint64(m.work[i])), bit(m.once[i]))
		h = blend(blend(h, uint64(len(m.ctrl[i]))), uint64(len(m.until[i])))
		for _, u := range m.outs[i] {
			h = blend(blend(h, uint64(m.size[u])), bit(m.final[u]))
		}
		colour[i] = blend(h, uint64(len(m.pair[i])))
	}
	for hop := 0; hop < alikeHops; hop++ {
		for i := range next {
			h := colour[i]
			for _, u := range m.ins[i] {
				h = blend(h, colour[m.prod[u]])
			}
			for _, u := range m.outs[i] {
				var sum uint64 // readers in any order
				for _, y := range m.users[u] {
					sum += blend(1, colour[y])
				}
				h = blend(h, sum)
			}
			next[i] = h
		}
		colour, next = next, colour
	}
	a := &alike{class: make([]int32, m.n), rank: make([]int32, m.n)}
	ids := make(map[uint64]int32)
	for _, x := range m.order {
		id, ok := ids[colour[x]]
		if !ok {
			id = int32(len(a.members))
			ids[colour[x]] = id
			a.members = append(a.members, nil)
		}
		a.class[x], a.rank[x] = id, int32(len(a.members[id]))
		a.members[id] = append(a.members[id], x)
	}
	for x, c := range a.class {
		if len(a.members[c]) < alikeLeast {
			a.class[x] = -1
		}
	}
	if !a.align(m) {
		return nil
	}
	return a
}

// align finds the shifts, from the class that is met first among those of the
// commonest size: what two neighbours in that class read and are read by are
// neighbours in theirs.
func (a *alike) align(m *model) bool {
	count := make(map[int]int)
	most := 0
	for _, list := range a.members {
		if n := len(list); n >= alikeLeast {
			count[n] += n
			if count[n] > count[most] || count[n] == count[most] && n > most {
				most = n
			}
		}
	}
	if most == 0 {
		return false
	}
	a.shift = make([]int32, len(a.members))
	for c, list := range a.members {
		if len(list) == most {
			a.shift[c] = 1
			a.anchors = append(a.anchors, int32(c))
			break
		}
	}
	for queue := a.anchors[:1:1]; len(queue) > 0; queue = queue[1:] {
		c := queue[0]
		list := a.members[c]
		k := len(list)/2 + int(min(a.shift[c], 0))
		x, y := list[k], list[(k+int(a.shift[c])+len(list))%len(list)]
		pair := func(v, w int32) {
			d := a.class[v]
			if d < 0 || a.class[w] != d || a.shift[d] != 0 || v == w {
				return
			}
			if s := a.rank[w] - a.rank[v]; int(max(s, -s)) <= len(a.members[d])/2 {
				a.shift[d] = s
				queue = append(queue, d)
			}
		}
		if len(m.ins[x]) != len(m.ins[y]) || len(m.outs[x]) != len(m.outs[y]) {
			continue // of one colour by chance
		}
		for i, u := range m.ins[x] {
			pair(m.prod[u], m.prod[m.ins[y][i]])
		}
		for i, u := range m.outs[x] {
			other := m.users[m.outs[y][i]]
			for j, v := range m.users[u] {
				if j < len(other) {
					pair(v, other[j])
				}
			}
		}
	}
	for c, list := range a.members {
		if len(list) == most && a.shift[c] == -1 {
			a.anchors = append(a.anchors, int32(c))
			break
		}
	}
	return true
}

// moved returns what plays x's part in the instance that is some steps on, or -1.
func (a *alike) moved(x, steps int32) int32 {
	c := a.class[x]
	if c < 0 || a.shift[c] == 0 {
		return x // there is one for all instances
	}
	k := a.rank[x] + steps*a.shift[c]
	if k < 0 || int(k) >= len(a.members[c]) {
		return -1
	}
	return a.members[c][k]
}

// segment is a stretch of a sequence: from the first run of an anchor to that of
// the next.
type segment struct {
	from, to int    // positions
	anchor   int32  // class
	step     int32  // of its instance
	pattern  uint64 // the same for segments that are each other's images
}

// segments cuts seq at the first runs of the anchors. What comes before the
// first of a direction and after the last is in none.
func (a *alike) segments(seq []int32) []segment {
	var list []segment
	for _, anchor := range a.anchors {
		met := make([]bool, len(a.members[anchor]))
		var part []segment
		for k, x := range seq {
			if a.class[x] != anchor || met[a.rank[x]] {
				continue
			}
			met[a.rank[x]] = true
			if n := len(part); n > 0 {
				part[n-1].to = k
			}
			part = append(part, segment{from: k, anchor: anchor, step: a.rank[x] * a.shift[anchor]})
		}
		if n := len(part); n > 1 && (len(list) == 0 || part[0].from >= list[len(list)-1].to) {
			list = append(list, part[:n-1]...)
		}
	}
	for i := range list {
		s := &list[i]
		h := uint64(s.anchor)
		for _, x := range seq[s.from:s.to] {
			if c := a.class[x]; c < 0 || a.shift[c] == 0 {
				h = blend(h, uint64(x)<<1)
			} else {
				h = blend(blend(h, uint64(c)<<1|1), uint64(a.rank[x]-s.step*a.shift[c]))
			}
		}
		s.pattern = h
	}
	return list
}

// renewal is what became of a segment.
type renewal struct {
	anchor, step int32
	was          uint64 // its pattern before
	now          []int32
}

type segmentID struct{ anchor, step int32 }

// renewals returns how one sequence became another, segment by segment.
func (a *alike) renewals(before, after []int32) []renewal {
	old := make(map[segmentID]uint64)
	for _, s := range a.segments(before) {
		old[segmentID{s.anchor, s.step}] = s.pattern
	}
	var list []renewal
	for _, s := range a.segments(after) {
		if was, ok := old[segmentID{s.anchor, s.step}]; ok && was != s.pattern {
			list = append(list, renewal{s.anchor, s.step, was, append([]int32(nil), after[s.from:s.to]...)})
		}
	}
	return list
}

// places returns by how many steps renewals can be moved: to where all segments
// are as those were before.
func (a *alike) places(seq []int32, renewals []renewal) []int32 {
	if len(renewals) == 0 {
		return nil
	}
	have := make(map[segmentID]uint64)
	list := a.segments(seq)
	for _, s := range list {
		have[segmentID{s.anchor, s.step}] = s.pattern
	}
	var steps []int32
	taken := make(map[segmentID]bool)
	for _, s := range list {
		if s.anchor != renewals[0].anchor || s.pattern != renewals[0].was {
			continue
		}
		d := s.step - renewals[0].step
		fits := true
		for _, c := range renewals {
			id := segmentID{c.anchor, c.step + d}
			fits = fits && have[id] == c.was && !taken[id]
		}
		if !fits {
			continue
		}
		for _, c := range renewals {
			taken[segmentID{c.anchor, c.step + d}] = true
		}
		steps = append(steps, d)
	}
	return steps
}

// lifted returns seq with renewals made in other instances too, some steps on.
func (a *alike) lifted(seq []int32, renewals []renewal, steps []int32) []int32 {
	images := make(map[segmentID][]int32)
	for _, d := range steps {
		whole := true
		part := make([][]int32, len(renewals))
		for k, c := range renewals {
			for _, x := range c.now {
				y := a.moved(x, d)
				whole = whole && y >= 0
				part[k] = append(part[k], y)
			}
		}
		for k, c := range renewals {
			if whole { // not at an end
				images[segmentID{c.anchor, c.step + d}] = part[k]
			}
		}
	}
	if len(images) == 0 {
		return nil
	}
	out := make([]int32, 0, len(seq))
	at := 0
	for _, s := range a.segments(seq) {
		if image, ok := images[segmentID{s.anchor, s.step}]; ok {
			out = append(append(out, seq[at:s.from]...), image...)
			at = s.to
		}
	}
	return append(out, seq[at:]...)
}

// lift offers the best plan with renewals made some steps on as well: in all
// places at once, or in as many as is legal and fits, found by halving.
func (s *search) lift(a *alike, renewals []renewal, steps []int32) {
	for n := len(steps); n > 0 && len(steps) > 0 && !s.stopped(); {
		n = min(n, len(steps))
		s.steps += int64(len(s.best)) / 16
		if s.offer(a.lifted(s.best, renewals, steps[:n]), "alike") {
			steps = steps[n:]
		} else {
			n /= 2
		}
	}
}

// alike improves the best plan of a problem with repeated layers: the
// surroundings of one segment of a common pattern are annealed by themselves,
// and what that changes is carried over to all that look the same.
func (s *search) alike() {
	if !s.on(solverAlike) || s.best == nil || s.stopped() {
		return
	}
	a := newAlike(s.m)
	if a == nil {
		return
	}
	was, wasCost := s.best, s.cost
	limit := s.steps + s.allowance()/4
	mean := float64(s.m.base) / float64(max(s.m.n, 1))
	usual := mix{moveRotate: 2, moveNear: 1, moveRemove: 2, moveAdd: 2, moveSwap: 2}
	r := rng(s.opt.Seed*1000003 + 700)
	for misses := 0; misses < alikeMisses && s.steps < limit && !s.done() && !s.stopped(); misses++ {
		list := a.segments(s.best)
		if len(list) == 0 {
			return
		}
		// One at random: common patterns come up often.
		seg := list[r.intn(len(list))]
		an := newAnnealer(s.m, s.best, s.opt.Budget, r.next())
		an.only = s.around(s.best[seg.from:seg.to])
		s.steps += an.run(int64(alikeMoves*len(an.only)), 0.1*mean, 0.002*mean, usual, s.stopped) + int64(len(s.best))/8
		before := s.best
		if s.offer(an.best, "alike") {
			renewals := a.renewals(before, s.best)
			s.lift(a, renewals, a.places(s.best, renewals))
			misses = -1
			s.before, s.beforeCost = was, wasCost
		}
	}
}

const (
	alikeMisses = 12 // segments in a row in which nothing was found
	alikeMoves  = 60 // moves for each node
)

// around lists the nodes of a segment and those that make what they read.
func (s *search) around(seg []int32) []int32 {
	var list []int32
	met := make(map[int32]bool)
	add := func(x int32) {
		if !met[x] {
			met[x] = true
			list = append(list, x)
		}
	}
	for _, x := range seg {
		add(x)
		for _, u := range s.m.ins[x] {
			add(s.m.prod[u])
		}
	}
	return list
}
