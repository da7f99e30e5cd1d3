package planner

import (
	"math"
	"sort"
)

// greedy follows an order of first runs and keeps within a budget by dropping
// what is cheap to compute again and far from its next use, and by computing
// again, just in time, what was dropped. It is the constructive solver that the
// others start from.
type greedy struct {
	m      *model
	budget int64
	ord    []int32
	weight []float64 // by buffer: how much dearer than its cost a loss counts, 1 is neutral
	distP  float64   // exponent of the distance to the next use
	sizeP  float64   // exponent of the size
	lazy   bool      // overwriters wait as long as they may

	at      int       // position in ord
	place   []int32   // by node: position in ord
	uses    [][]int32 // by buffer: positions in ord of its readers, ascending
	ptr     []int32   // by buffer: first use not yet passed
	live    []bool    // by buffer
	made    []bool    // by node
	locked  []int32   // by buffer: ops under way that need it
	shut    []bool    // by node: an overwriter has run
	need    []int32   // by buffer: next position at which it is needed, through what was dropped
	needAt  int       // position for which need holds, -1 if none
	needG   []int32   // by buffer: next position behind the next gate at which it is needed; nil without tolls
	gateAt  int32     // position of the next gate
	mem     int64
	seq     []int32
	pending []int32 // overwriters that wait
	mark    []int32 // scratch of closure
	stamp   int32
	stack   []int32
	liveSet []int32 // buffers that are or were live, for scanning
	inSet   []bool
	limit   int // on len(seq), against runaway recomputation
	depth   int
	batch   []victim // next buffers to drop, worst first
	width   int      // how many victims one look at all buffers yields
	visits  int64    // work done
	most    int64    // work after which it gives up: where nearly everything is dropped, each step looks at nearly everything

	// What a policy is made of, if the solver imitates one: at position
	// boundary of ord everything that may be computed again and is not in keep
	// is dropped.
	keep     []bool
	boundary int
	online   bool // choose victims without looking ahead, as DTR does
	used     []int32
}

// victim is a buffer that may be dropped, with its score.
type victim struct {
	buf   int32
	score float64
}

const never = math.MaxInt32

func newGreedy(m *model, ord []int32) *greedy {
	nb := len(m.size)
	g := &greedy{m: m, ord: ord, distP: 1, sizeP: 1, width: max(1, m.n/1000),
		place: make([]int32, m.n), uses: make([][]int32, nb), ptr: make([]int32, nb),
		live: make([]bool, nb), made: make([]bool, m.n), locked: make([]int32, nb),
		shut: make([]bool, m.n), need: make([]int32, nb), mark: make([]int32, m.n), inSet: make([]bool, nb)}
	if m.tolled {
		g.needG = make([]int32, nb)
	}
	for k, x := range ord {
		g.place[x] = int32(k)
		for _, b := range m.ins[x] {
			g.uses[b] = append(g.uses[b], int32(k))
		}
	}
	return g
}

// run returns a sequence within the budget, or nil.
func (g *greedy) run(budget int64) []int32 {
	m := g.m
	g.budget = budget
	g.mem = m.resident
	g.seq = g.seq[:0]
	g.pending = g.pending[:0]
	g.liveSet = g.liveSet[:0]
	g.limit = 8*m.n + 1024
	g.batch = g.batch[:0]
	g.most = g.visits + 4_000_000 + 4000*int64(m.n)
	for b := range g.live {
		g.live[b], g.locked[b], g.ptr[b], g.inSet[b] = false, 0, 0, false
	}
	for x := range g.made {
		g.made[x], g.shut[x] = false, false
	}
	for k, x := range g.ord {
		g.at = k
		g.needAt = -1
		if g.keep != nil && k == g.boundary {
			g.forget()
		}
		if len(m.since[x]) > 0 && !g.mayShut(x) {
			g.pending = append(g.pending, x)
			continue
		}
		if !g.exec(x) {
			return nil
		}
		if len(g.pending) > 0 && !g.flush() {
			return nil
		}
	}
	g.at = len(g.ord)
	g.needAt = -1
	for len(g.pending) > 0 {
		before := len(g.pending)
		if !g.flush() || len(g.pending) == before {
			return nil
		}
	}
	// Outputs that were dropped come back.
	for b, f := range m.final {
		if f && !g.live[b] && !g.ensure(int32(b)) {
			return nil
		}
		if f {
			g.locked[b]++
		}
	}
	return append([]int32{}, g.seq...)
}

// forget drops at once what keep does not name.
func (g *greedy) forget() {
	g.analyse()
	for _, b := range g.liveSet {
		if !g.live[b] || g.keep[b] || g.need[b] == never || g.m.size[b] == 0 {
			continue
		}
		g.live[b] = false
		if math.IsInf(g.closure(b, -1), 1) {
			g.live[b] = true
			continue
		}
		g.mem -= g.m.size[b]
		g.lower(b)
	}
}

// flush runs the waiting overwriters that may run now.
func (g *greedy) flush() bool {
	rest := g.pending[:0]
	waiting := append([]int32(nil), g.pending...)
	for _, x := range waiting {
		if g.mayShut(x) {
			if !g.exec(x) {
				return false
			}
			g.needAt = -1
		} else {
			rest = append(rest, x)
		}
	}
	g.pending = rest
	return true
}

// mayShut reports whether no reader of what x overwrites will have to run
// again, given what is live now.
func (g *greedy) mayShut(x int32) bool {
	m := g.m
	for _, in := range m.ins[x] {
		if !g.made[m.prod[in]] {
			return false
		}
	}
	for _, y := range m.ctrl[x] {
		if !g.made[y] {
			return false
		}
	}
	g.analyse()
	for _, r := range m.since[x] {
		if !g.made[r] {
			return false
		}
		for _, b := range m.outs[r] {
			if !g.live[b] && g.need[b] != never {
				return false
			}
		}
	}
	// What x itself reads may be gone and need the same readers.
	for _, in := range m.ins[x] {
		if !g.live[in] && math.IsInf(g.closure(in, x), 1) {
			return false
		}
	}
	return true
}

// exec runs node x now: its inputs are made live, room is made for its outputs.
func (g *greedy) exec(x int32) bool {
	m := g.m
	if g.depth > 10000 {
		return false
	}
	g.depth++
	defer func() { g.depth-- }()
	if len(g.seq) >= g.limit || g.visits > g.most || g.shut[x] || (m.once[x] && g.made[x]) {
		return false
	}
	for _, y := range m.ctrl[x] {
		if !g.made[y] {
			return false
		}
	}
	for _, b := range m.ins[x] {
		if g.live[b] {
			g.locked[b]++
		}
	}
	for _, b := range m.ins[x] {
		if !g.live[b] {
			if !g.ensure(b) {
				return false
			}
			g.locked[b]++
		}
	}
	border := m.tolled && m.gate[x] && !g.made[x]
	if border {
		g.pay(x, false)
	}
	var want int64
	for _, b := range m.outs[x] {
		if !g.live[b] {
			want += m.size[b]
		}
	}
	want += m.work[x]
	want -= g.reusable(x)
	if !g.room(want) {
		return false
	}
	for _, b := range m.outs[x] {
		if !g.live[b] {
			g.live[b] = true
			g.mem += m.size[b]
			if !g.inSet[b] {
				g.inSet[b] = true
				g.liveSet = append(g.liveSet, b)
			}
		}
	}
	for _, b := range m.ins[x] {
		g.locked[b]--
	}
	g.made[x] = true
	for _, r := range m.since[x] {
		g.shut[r] = true
	}
	g.seq = append(g.seq, x)
	if border {
		g.pay(x, true)
	}
	if g.online {
		for _, list := range [2][]int32{m.ins[x], m.outs[x]} {
			for _, b := range list {
				g.used[b] = int32(len(g.seq))
			}
		}
	}
	if g.at < len(g.ord) && g.ord[g.at] == x {
		for _, b := range m.ins[x] {
			for g.ptr[b] < int32(len(g.uses[b])) && g.uses[b][g.ptr[b]] <= int32(g.at) {
				g.ptr[b]++
			}
		}
	}
	// An input that x writes over is gone.
	for _, pr := range m.pair[x] {
		if g.live[pr.in] && g.locked[pr.in] == 0 && !m.final[pr.in] && int(g.ptr[pr.in]) == len(g.uses[pr.in]) && g.need[pr.in] == never && g.needAt == g.at {
			g.drop(pr.in)
		}
	}
	return true
}

// pay drops, at gate x, what may not be kept across it: before it runs all but
// what it reads itself, then (ran) that too.
func (g *greedy) pay(x int32, ran bool) {
	for b, toll := range g.m.toll {
		if toll && g.live[b] && (ran || g.locked[b] == 0) && g.m.prod[b] != x {
			g.drop(int32(b))
		}
	}
	g.needAt = -1
}

// reusable returns the bytes of outputs of x that can live in an input that is
// read for the last time.
func (g *greedy) reusable(x int32) int64 {
	m := g.m
	if len(m.pair[x]) == 0 || g.at >= len(g.ord) || g.ord[g.at] != x {
		return 0
	}
	g.analyse()
	var s int64
	var usedIn, usedOut [8]int32
	k := 0
	for _, pr := range m.pair[x] {
		if k == len(usedIn) || m.final[pr.in] || g.locked[pr.in] > 1 || g.live[pr.out] {
			continue
		}
		dup := false
		for j := 0; j < k; j++ {
			dup = dup || usedIn[j] == pr.in || usedOut[j] == pr.out
		}
		// need counts the use at hand; a later one must not exist.
		if dup || g.needAfter(pr.in) {
			continue
		}
		usedIn[k], usedOut[k] = pr.in, pr.out
		k++
		s += m.size[pr.out]
	}
	return s
}

// needAfter reports whether buffer b is needed after the node at hand.
func (g *greedy) needAfter(b int32) bool {
	u := g.uses[b]
	k := g.ptr[b]
	for k < int32(len(u)) && u[k] <= int32(g.at) {
		k++
	}
	if k < int32(len(u)) {
		return true
	}
	for _, r := range g.m.users[b] {
		if !g.made[r] {
			continue
		}
		for _, o := range g.m.outs[r] {
			if !g.live[o] && g.need[o] != never || g.needG != nil && g.m.toll[o] && g.needG[o] != never {
				return true
			}
		}
	}
	for _, x := range g.pending {
		if contains(g.m.ins[x], b) {
			return true
		}
	}
	return false
}

// ensure makes buffer b live by running its producer.
func (g *greedy) ensure(b int32) bool {
	if g.live[b] {
		return true
	}
	return g.exec(g.m.prod[b])
}

func (g *greedy) drop(b int32) {
	g.live[b] = false
	g.mem -= g.m.size[b]
}

// analyse computes need for the current position.
func (g *greedy) analyse() {
	if g.needAt == g.at {
		return
	}
	g.needAt = g.at
	m := g.m
	g.visits += int64(len(g.need) + g.at)
	end := int32(len(g.ord))
	if g.needG != nil {
		g.behind()
	}
	for b := range g.need {
		u := g.uses[b]
		k := g.ptr[b]
		for k < int32(len(u)) && u[k] < int32(g.at) {
			k++
		}
		g.ptr[b] = k
		switch {
		case k < int32(len(u)):
			g.need[b] = u[k]
		case m.final[b]:
			g.need[b] = end
		default:
			g.need[b] = never
		}
	}
	for _, x := range g.pending {
		for _, b := range m.ins[x] {
			g.need[b] = min(g.need[b], int32(g.at)+1)
		}
	}
	for k := min(g.at, len(g.ord)-1); k >= 0; k-- {
		x := g.ord[k]
		if !g.made[x] {
			continue
		}
		first := int32(never)
		for _, b := range m.outs[x] {
			if !g.live[b] {
				first = min(first, g.need[b])
			}
			if g.needG != nil && m.toll[b] {
				first = min(first, g.needG[b])
			}
		}
		if first != never {
			for _, b := range m.ins[x] {
				g.need[b] = min(g.need[b], first)
			}
		}
	}
}

// behind computes needG for the current position: what will be needed behind
// the next gate, directly or to compute again what may not pass it.
func (g *greedy) behind() {
	m := g.m
	g.gateAt = never
	for _, x := range m.gates {
		if !g.made[x] {
			g.gateAt = min(g.gateAt, g.place[x])
		}
	}
	for b := range g.needG {
		g.needG[b] = never
		u := g.uses[b]
		for k := len(u) - 1; k >= 0 && u[k] > g.gateAt; k-- {
			g.needG[b] = u[k]
		}
	}
	for k := min(g.at, len(g.ord)-1); k >= 0; k-- {
		x := g.ord[k]
		if !g.made[x] {
			continue
		}
		first := int32(never)
		for _, b := range m.outs[x] {
			if !g.live[b] || m.toll[b] {
				first = min(first, g.needG[b])
			}
		}
		if first != never {
			for _, b := range m.ins[x] {
				g.needG[b] = min(g.needG[b], first)
			}
		}
	}
}

// lower propagates a need to what a dropped buffer is made from.
func (g *greedy) lower(b int32) { g.lowerTo(b, g.need[b]) }

func (g *greedy) lowerTo(b, t int32) {
	for _, u := range g.m.ins[g.m.prod[b]] {
		again := g.needG != nil && t > g.gateAt && g.m.toll[u] && g.needG[u] > t
		if again {
			g.needG[u] = t
		}
		if g.need[u] > t {
			g.need[u] = t
			again = again || !g.live[u]
		}
		if again {
			g.lowerTo(u, t)
		}
	}
}

// room drops buffers until want more bytes fit.
func (g *greedy) room(want int64) bool {
	for g.mem+want > g.budget {
		if k := len(g.batch); k > 0 {
			b := g.batch[k-1].buf
			g.batch = g.batch[:k-1]
			if !g.live[b] || g.locked[b] > 0 || (g.width > 1 && math.IsInf(g.closure(b, -1), 1)) {
				continue
			}
			g.drop(b)
			g.lower(b)
			continue
		}
		g.analyse()
		g.release()
		if g.mem+want <= g.budget {
			break
		}
		g.choose()
		if len(g.batch) == 0 {
			return false
		}
	}
	if g.width == 1 {
		g.batch = g.batch[:0]
	}
	return true
}

// release drops what nothing needs any more.
func (g *greedy) release() {
	keep := g.liveSet[:0]
	for _, b := range g.liveSet {
		if !g.live[b] {
			g.inSet[b] = false
			continue
		}
		if g.locked[b] == 0 && g.need[b] == never && !g.m.final[b] {
			g.drop(b)
			g.inSet[b] = false
			continue
		}
		keep = append(keep, b)
	}
	g.liveSet = keep
}

// choose fills batch with the buffers that are cheapest to lose.
func (g *greedy) choose() {
	m := g.m
	g.batch = g.batch[:0]
	worst := math.Inf(1)
	for _, b := range g.liveSet {
		if !g.live[b] || g.locked[b] > 0 || m.size[b] == 0 || m.once[m.prod[b]] || g.shut[m.prod[b]] {
			continue
		}
		c := g.closure(b, -1)
		if math.IsInf(c, 1) {
			continue
		}
		dist := float64(g.need[b]) - float64(g.at) + 1
		if g.online {
			dist = float64(len(g.seq)) - float64(g.used[b]) + 1
		}
		if g.need[b] == never {
			dist = float64(len(g.ord))
		}
		score := (c + 1e-3) / (pow(float64(m.size[b]), g.sizeP) * pow(dist, g.distP))
		if g.weight != nil {
			score *= g.weight[b]
		}
		if score >= worst {
			continue
		}
		if g.width == 1 {
			g.batch = append(g.batch[:0], victim{b, score})
			worst = score
			continue
		}
		g.batch = append(g.batch, victim{b, score})
	}
	if g.width > 1 {
		sort.SliceStable(g.batch, func(a, b int) bool { return g.batch[a].score < g.batch[b].score })
		if len(g.batch) > g.width {
			g.batch = g.batch[:g.width]
		}
		for i, j := 0, len(g.batch)-1; i < j; i, j = i+1, j-1 {
			g.batch[i], g.batch[j] = g.batch[j], g.batch[i]
		}
	}
}

func pow(x, p float64) float64 {
	switch p {
	case 0:
		return 1
	case 1:
		return x
	}
	return math.Pow(x, p)
}

// closure returns the cost of making buffer b again, given what is live, or
// +Inf if that is not allowed. Running overwriter extra is taken as done.
func (g *greedy) closure(b, extra int32) float64 {
	m := g.m
	g.stamp++
	total := 0.0
	g.stack = append(g.stack[:0], m.prod[b])
	g.mark[m.prod[b]] = g.stamp
	for len(g.stack) > 0 {
		x := g.stack[len(g.stack)-1]
		g.stack = g.stack[:len(g.stack)-1]
		g.visits++
		if g.shut[x] || (m.once[x] && g.made[x]) {
			return math.Inf(1)
		}
		total += float64(m.bias[x])
		for _, f := range m.feeds[m.feedsOf[x]:m.feedsOf[x+1]] {
			if !g.live[f.buf] && g.mark[f.by] != g.stamp {
				g.mark[f.by] = g.stamp
				g.stack = append(g.stack, f.by)
			}
		}
	}
	return total
}
