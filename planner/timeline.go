package planner

// timeline is a sequence of node instances that can be changed in place. It
// keeps the memory at each moment in a tree with range add and range maximum,
// so that inserting, removing or moving an instance costs a logarithm of the
// length times the number of buffers that it touches.
//
// Instances sit in slots, with gaps between them. A slot without an instance
// has no more memory than the occupied slot before it, so the maximum over all
// slots is the peak.
type timeline struct {
	m *model

	node  []int32 // by instance; 0 and 1 are the head and the tail
	slot  []int32
	prev  []int32
	next  []int32
	bonus []int64 // by instance: bytes of outputs that live in an input's memory
	free  []int32 // unused instance ids, last in first out

	at    []int32   // by slot: instance or -1
	runs  [][]int32 // by node: instances, in order
	reads [][]int32 // by buffer: reading instances, in order

	tree  maxTree
	slots int32
	count int
	cost  int64
	bias  int64

	log     []change
	touched []int32
}

// change is an entry of the undo log: the insertion of an instance, or the
// removal of one of node that came after instance prev.
type change struct {
	insert bool
	inst   int32
	node   int32
	prev   int32
}

const (
	head int32 = 0
	tail int32 = 1
)

// newTimeline lays out seq, which must be legal.
func newTimeline(m *model, seq []int32) *timeline {
	t := &timeline{m: m, runs: make([][]int32, m.n), reads: make([][]int32, len(m.size))}
	t.node = []int32{-1, -1}
	t.slot = []int32{0, 0}
	t.prev = []int32{-1, head}
	t.next = []int32{tail, -1}
	t.bonus = []int64{0, 0}
	last := head
	t.cost, t.bias = m.views, m.views
	for _, x := range seq {
		i := t.alloc(x)
		t.prev[i], t.next[i] = last, tail
		t.next[last], t.prev[tail] = i, i
		last = i
		t.runs[x] = append(t.runs[x], i)
		for _, u := range m.ins[x] {
			t.reads[u] = append(t.reads[u], i)
		}
		t.count++
		t.cost += m.cost[x]
		t.bias += m.bias[x]
	}
	t.spread()
	return t
}

func (t *timeline) alloc(x int32) int32 {
	if k := len(t.free); k > 0 {
		i := t.free[k-1]
		t.free = t.free[:k-1]
		t.node[i], t.bonus[i] = x, 0
		return i
	}
	t.node = append(t.node, x)
	t.slot = append(t.slot, 0)
	t.prev = append(t.prev, 0)
	t.next = append(t.next, 0)
	t.bonus = append(t.bonus, 0)
	return int32(len(t.node) - 1)
}

// sequence returns the nodes in order.
func (t *timeline) sequence() []int32 {
	seq := make([]int32, 0, t.count)
	for i := t.next[head]; i != tail; i = t.next[i] {
		seq = append(seq, t.node[i])
	}
	return seq
}

// spread gives all instances new slots at even distances and builds the tree.
func (t *timeline) spread() {
	want := int32(64)
	for want < int32(4*(t.count+2)) {
		want *= 2
	}
	t.slots = max(t.slots, want)
	if len(t.at) != int(t.slots) {
		t.at = make([]int32, t.slots)
	}
	for s := range t.at {
		t.at[s] = -1
	}
	t.slot[head], t.slot[tail] = 0, t.slots-1
	k := int64(0)
	for i := t.next[head]; i != tail; i = t.next[i] {
		k++
		s := int32(k * int64(t.slots-1) / int64(t.count+1))
		t.slot[i] = s
		t.at[s] = i
	}
	t.tree.reset(int(t.slots))
	leaf := t.tree.leaves()
	span := func(a, b int32, size int64) {
		leaf[a] += size
		if b+1 < t.slots {
			leaf[b+1] -= size
		}
	}
	for x := range t.runs {
		for k := range t.runs[x] {
			for _, u := range t.m.outs[x] {
				if size := t.m.size[u]; size > 0 {
					span(t.slot[t.runs[x][k]], t.end(u, k), size)
				}
			}
		}
	}
	live := t.m.resident
	for s := range leaf {
		live += leaf[s]
		leaf[s] = live
	}
	for i := t.next[head]; i != tail; i = t.next[i] {
		t.bonus[i] = t.reusable(i)
		leaf[t.slot[i]] += t.m.work[t.node[i]] - t.bonus[i]
	}
	t.tree.build()
}

// before returns how many instances of list are in slots below s.
func (t *timeline) before(list []int32, s int32) int {
	n := len(list)
	if n <= 8 {
		for n > 0 && t.slot[list[n-1]] >= s {
			n--
		}
		return n
	}
	lo, hi := 0, n
	for lo < hi {
		mid := (lo + hi) / 2
		if t.slot[list[mid]] < s {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// end returns the last slot in which the k-th instance of buffer u is in use.
func (t *timeline) end(u int32, k int) int32 {
	runs := t.runs[t.m.prod[u]]
	reads := t.reads[u]
	n := len(reads)
	if k+1 < len(runs) {
		n = t.before(reads, t.slot[runs[k+1]])
	} else if t.m.final[u] {
		return t.slots - 1
	}
	start := t.slot[runs[k]]
	if n > 0 {
		if s := t.slot[reads[n-1]]; s > start {
			return s
		}
	}
	return start
}

// reusable computes the bytes of instance i's outputs that live in the memory
// of an input while it runs.
func (t *timeline) reusable(i int32) int64 {
	x := t.node[i]
	pairs := t.m.pair[x]
	if len(pairs) == 0 {
		return 0
	}
	s := t.slot[i]
	var total int64
	var in, out [8]int32
	n := 0
	for _, pr := range pairs {
		used := n == len(in)
		for j := 0; j < n; j++ {
			used = used || in[j] == pr.in || out[j] == pr.out
		}
		if used {
			continue
		}
		k := t.before(t.runs[t.m.prod[pr.in]], s) - 1
		if k < 0 || t.end(pr.in, k) != s {
			continue
		}
		in[n], out[n] = pr.in, pr.out
		n++
		total += t.m.size[pr.out]
	}
	return total
}

// refresh brings the bonus of what sits in slot s up to date.
func (t *timeline) refresh(s int32) {
	i := t.at[s]
	if i < 0 || len(t.m.pair[t.node[i]]) == 0 {
		return
	}
	if b := t.reusable(i); b != t.bonus[i] {
		t.tree.add(s, s, t.bonus[i]-b)
		t.bonus[i] = b
	}
}

func insertAt(list []int32, k int, i int32) []int32 {
	list = append(list, 0)
	copy(list[k+1:], list[k:])
	list[k] = i
	return list
}

func removeAt(list []int32, k int) []int32 {
	copy(list[k:], list[k+1:])
	return list[:len(list)-1]
}

// slotAfter makes room for an instance right after instance p.
func (t *timeline) slotAfter(p int32) int32 {
	for {
		a, b := t.slot[p], t.slot[t.next[p]]
		if b-a > 1 {
			return a + (b-a)/2
		}
		if !t.shift(p) {
			t.spread()
		}
	}
}

// shift moves the instances next to p away by one slot. It fails if there is no
// free slot nearby.
func (t *timeline) shift(p int32) bool {
	const reach = 48
	// To the right: the run that starts at next[p].
	i := t.next[p]
	for d := 0; d < reach && i != tail; d++ {
		if t.slot[t.next[i]]-t.slot[i] > 1 {
			for {
				j := t.prev[i]
				t.nudge(i, 1)
				if j == p {
					return true
				}
				i = j
			}
		}
		i = t.next[i]
	}
	i = p
	for d := 0; d < reach && i != head; d++ {
		if t.slot[i]-t.slot[t.prev[i]] > 1 {
			for {
				j := t.next[i]
				t.nudge(i, -1)
				if i == p {
					return true
				}
				i = j
			}
		}
		i = t.prev[i]
	}
	return false
}

// nudge moves instance i to the free slot next to it on the right (d = 1) or on
// the left (d = -1).
func (t *timeline) nudge(i, d int32) {
	m := t.m
	x, s := t.node[i], t.slot[i]
	own := m.work[x] - t.bonus[i]
	first, last := own, own // what is there only from, or only until, this instance
	k := t.before(t.runs[x], s)
	for _, u := range m.outs[x] {
		first += m.size[u]
		if t.end(u, k) == s {
			last += m.size[u]
		}
	}
	for _, u := range m.ins[x] {
		if k := t.before(t.runs[m.prod[u]], s) - 1; k >= 0 && t.end(u, k) == s {
			last += m.size[u]
		}
	}
	if d > 0 {
		t.tree.add(s, s, -first)
		t.tree.add(s+1, s+1, last)
	} else {
		t.tree.add(s-1, s-1, first)
		t.tree.add(s, s, -last)
	}
	t.at[s], t.at[s+d] = -1, i
	t.slot[i] = s + d
}

// put inserts an instance of x after instance p and returns it. The result must
// be legal: see canPut.
func (t *timeline) put(x, p int32) int32 {
	i := t.insert(x, p)
	t.log = append(t.log, change{true, i, x, p})
	return i
}

// take removes instance i. The result must be legal: see canTake.
func (t *timeline) take(i int32) {
	t.log = append(t.log, change{false, i, t.node[i], t.prev[i]})
	t.remove(i)
}

// undo takes back the changes since the log had length n.
func (t *timeline) undo(n int) {
	for k := len(t.log) - 1; k >= n; k-- {
		c := t.log[k]
		if c.insert {
			t.remove(c.inst)
		} else {
			t.insert(c.node, c.prev)
		}
	}
	t.log = t.log[:n]
}

func (t *timeline) insert(x, p int32) int32 {
	m := t.m
	s := t.slotAfter(p)
	i := t.alloc(x)
	q := t.next[p]
	t.prev[i], t.next[i] = p, q
	t.next[p], t.prev[q] = i, i
	t.slot[i] = s
	t.at[s] = i
	t.count++
	t.cost += m.cost[x]
	t.bias += m.bias[x]
	t.touched = t.touched[:0]
	for _, u := range m.ins[x] {
		k := t.before(t.runs[m.prod[u]], s) - 1
		if k < 0 {
			// Only while undo passes through an illegal state.
			t.reads[u] = insertAt(t.reads[u], t.before(t.reads[u], s), i)
			continue
		}
		was := t.end(u, k)
		t.reads[u] = insertAt(t.reads[u], t.before(t.reads[u], s), i)
		if s > was {
			if m.size[u] > 0 {
				t.tree.add(was+1, s, m.size[u])
			}
			t.touched = append(t.touched, was)
		}
	}
	j := t.before(t.runs[x], s)
	t.runs[x] = append(t.runs[x], 0)
	runs := t.runs[x]
	copy(runs[j+1:], runs[j:])
	if j > 0 {
		runs[j] = i // makes end(·, j-1) see the new instance
		for _, u := range m.outs[x] {
			now := t.end(u, j-1)
			own := t.end(u, j)
			was := now
			if own > s {
				was = own // its readers belonged to the instance before
			}
			if m.size[u] > 0 {
				if was > now {
					t.tree.add(now+1, was, -m.size[u])
				}
				t.tree.add(s, own, m.size[u])
			}
			if was > now {
				t.touched = append(t.touched, now)
			}
			t.touched = append(t.touched, own)
		}
	} else {
		runs[0] = i
		for _, u := range m.outs[x] {
			own := t.end(u, 0)
			if m.size[u] > 0 {
				t.tree.add(s, own, m.size[u])
			}
			t.touched = append(t.touched, own)
		}
	}
	if m.work[x] > 0 {
		t.tree.add(s, s, m.work[x])
	}
	t.refresh(s)
	for _, s := range t.touched {
		t.refresh(s)
	}
	return i
}

func (t *timeline) remove(i int32) {
	m := t.m
	x, s := t.node[i], t.slot[i]
	if b := t.bonus[i]; b != 0 {
		t.tree.add(s, s, b)
		t.bonus[i] = 0
	}
	if m.work[x] > 0 {
		t.tree.add(s, s, -m.work[x])
	}
	t.at[s] = -1
	t.touched = t.touched[:0]
	j := t.before(t.runs[x], s)
	for _, u := range m.outs[x] {
		own := t.end(u, j)
		if m.size[u] > 0 {
			t.tree.add(s, own, -m.size[u])
		}
		if j > 0 {
			now := t.end(u, j-1)
			if own > s {
				if m.size[u] > 0 {
					t.tree.add(now+1, own, m.size[u])
				}
				t.touched = append(t.touched, now)
			}
		}
		t.touched = append(t.touched, own)
	}
	t.runs[x] = removeAt(t.runs[x], j)
	for _, u := range m.ins[x] {
		k := t.before(t.runs[m.prod[u]], s) - 1
		r := t.before(t.reads[u], s)
		if k < 0 {
			t.reads[u] = removeAt(t.reads[u], r)
			continue
		}
		was := t.end(u, k)
		t.reads[u] = removeAt(t.reads[u], r)
		if now := t.end(u, k); now < was {
			if m.size[u] > 0 {
				t.tree.add(now+1, was, -m.size[u])
			}
			t.touched = append(t.touched, now)
		}
	}
	p, q := t.prev[i], t.next[i]
	t.next[p], t.prev[q] = q, p
	t.count--
	t.cost -= m.cost[x]
	t.bias -= m.bias[x]
	t.free = append(t.free, i)
	for _, s := range t.touched {
		t.refresh(s)
	}
}

// canPut reports whether an instance of x right after instance p is legal.
func (t *timeline) canPut(x, p int32) bool {
	m := t.m
	if m.once[x] && len(t.runs[x]) > 0 {
		return false
	}
	s := t.slot[p]
	for _, u := range m.ins[x] {
		r := t.runs[m.prod[u]]
		if len(r) == 0 || t.slot[r[0]] > s {
			return false
		}
	}
	for _, w := range m.until[x] {
		if r := t.runs[w]; len(r) > 0 && t.slot[r[0]] <= s {
			return false
		}
	}
	for _, y := range m.since[x] {
		if r := t.runs[y]; len(r) == 0 || t.slot[r[len(r)-1]] > s {
			return false
		}
	}
	for _, y := range m.ctrl[x] {
		if r := t.runs[y]; len(r) == 0 || t.slot[r[0]] > s {
			return false
		}
	}
	for _, y := range m.ctrlr[x] {
		if r := t.runs[y]; len(r) > 0 && t.slot[r[0]] <= s {
			return false
		}
	}
	return true
}

// canTake reports whether instance i, one of several of its node, may go.
func (t *timeline) canTake(i int32) bool {
	x := t.node[i]
	runs := t.runs[x]
	if len(runs) < 2 {
		return false
	}
	if runs[0] != i {
		return true
	}
	s := t.slot[runs[1]]
	for _, u := range t.m.outs[x] {
		if r := t.reads[u]; len(r) > 0 && t.slot[r[0]] < s {
			return false
		}
	}
	return true
}

// idle reports whether nothing reads what instance i computes.
func (t *timeline) idle(i int32) bool {
	x := t.node[i]
	runs := t.runs[x]
	j := t.before(runs, t.slot[i])
	for _, u := range t.m.outs[x] {
		if j == len(runs)-1 && t.m.final[u] {
			return false
		}
		r := t.reads[u]
		n := len(r)
		if j+1 < len(runs) {
			n = t.before(r, t.slot[runs[j+1]])
		}
		if n > 0 && t.slot[r[n-1]] > t.slot[i] {
			return false
		}
	}
	return true
}

// peak returns the highest memory, residents included.
func (t *timeline) peak() int64 { return max(t.tree.max(), t.m.resident) }

// maxTree is a segment tree with range add and range maximum.
type maxTree struct {
	n    int     // number of leaves, a power of two
	top  []int64 // by node: maximum below it, without what its ancestors add
	lazy []int64 // by inner node: added to everything below it
}

func (t *maxTree) reset(n int) {
	if t.n != n {
		t.n = n
		t.top = make([]int64, 2*n)
		t.lazy = make([]int64, n)
		return
	}
	clear(t.top)
	clear(t.lazy)
}

// leaves gives access to the leaves between reset and build.
func (t *maxTree) leaves() []int64 { return t.top[t.n:] }

func (t *maxTree) build() {
	for k := t.n - 1; k > 0; k-- {
		t.top[k] = max(t.top[2*k], t.top[2*k+1])
	}
}

func (t *maxTree) max() int64 { return t.top[1] }

// add adds d to the leaves a to b, both included.
func (t *maxTree) add(a, b int32, d int64) {
	l, r := int(a)+t.n, int(b)+t.n
	top, lazy := t.top, t.lazy
	// Walk both borders up; what lies between them is covered by siblings.
	top[l] += d
	if l != r {
		top[r] += d
	}
	for l>>1 != r>>1 {
		if l&1 == 0 {
			top[l^1] += d
			if l^1 < t.n {
				lazy[l^1] += d
			}
		}
		if r&1 == 1 {
			top[r^1] += d
			if r^1 < t.n {
				lazy[r^1] += d
			}
		}
		l >>= 1
		r >>= 1
		top[l] = max(top[2*l], top[2*l+1]) + lazy[l]
		top[r] = max(top[2*r], top[2*r+1]) + lazy[r]
	}
	for l >>= 1; l > 0; l >>= 1 {
		v := max(top[2*l], top[2*l+1]) + lazy[l]
		top[l] = v
	}
}

// over returns the largest leaf in a to b.
func (t *maxTree) over(a, b int32) int64 {
	l, r := int(a)+t.n, int(b)+t.n
	ml, mr := t.top[l], t.top[r]
	for l>>1 != r>>1 {
		if l&1 == 0 {
			ml = max(ml, t.top[l^1])
		}
		if r&1 == 1 {
			mr = max(mr, t.top[r^1])
		}
		l >>= 1
		r >>= 1
		ml += t.lazy[l]
		mr += t.lazy[r]
	}
	best := max(ml, mr)
	for l >>= 1; l > 0; l >>= 1 {
		best += t.lazy[l]
	}
	return best
}

// argmax returns a leaf with the maximum: the first, or the last.
func (t *maxTree) argmax(last bool) int32 {
	k := 1
	for k < t.n {
		l, r := t.top[2*k], t.top[2*k+1]
		if l > r || (l == r && !last) {
			k = 2 * k
		} else {
			k = 2*k + 1
		}
	}
	return int32(k - t.n)
}

// excess adds up what the leaves have beyond limit.
func (t *maxTree) excess(limit int64) int64 { return t.excessAt(1, limit) }

func (t *maxTree) excessAt(k int, limit int64) int64 {
	if t.top[k] <= limit {
		return 0
	}
	if k >= t.n {
		return t.top[k] - limit
	}
	limit -= t.lazy[k]
	if 2*k >= t.n { // over leaves
		return max(t.top[2*k]-limit, 0) + max(t.top[2*k+1]-limit, 0)
	}
	return t.excessAt(2*k, limit) + t.excessAt(2*k+1, limit)
}

// move takes instance i out and puts its node back right after instance p, if
// that is legal, and returns the new instance, or -1.
func (t *timeline) move(i, p int32) int32 {
	if p == i || p == t.prev[i] || p == tail || !t.canMove(i, p) {
		return -1
	}
	x := t.node[i]
	t.take(i)
	return t.put(x, p)
}

// canMove reports whether instance i may go right after instance p.
func (t *timeline) canMove(i, p int32) bool {
	m := t.m
	x := t.node[i]
	s, was := t.slot[p], t.slot[i]
	runs := t.runs[x]
	if s < was {
		for _, u := range m.ins[x] {
			if t.slot[t.runs[m.prod[u]][0]] > s {
				return false
			}
		}
		for _, y := range m.since[x] {
			r := t.runs[y]
			if t.slot[r[len(r)-1]] > s {
				return false
			}
		}
		for _, y := range m.ctrl[x] {
			if t.slot[t.runs[y][0]] > s {
				return false
			}
		}
		return true
	}
	for _, w := range m.until[x] {
		if t.slot[t.runs[w][0]] <= s {
			return false
		}
	}
	for _, y := range m.ctrlr[x] {
		if t.slot[t.runs[y][0]] <= s {
			return false
		}
	}
	if runs[0] != i {
		return true
	}
	// The first run may not pass a reader, unless another run comes before it.
	if len(runs) > 1 {
		s = min(s, t.slot[runs[1]]-1)
	}
	for _, u := range m.outs[x] {
		if r := t.reads[u]; len(r) > 0 && t.slot[r[0]] <= s {
			return false
		}
	}
	return true
}
