package pack

import (
	"slices"
	"sort"
)

// Options steer Search.
type Options struct {
	Steps int64       // placements to try; 0 is 1,000,000
	Room  int64       // an arena of this size is small enough; 0: the smallest
	Stop  func() bool // asked now and then; nil never stops
}

// Search returns the best layout that it finds. It first runs Pack's rules and
// then, if those leave a gap to the lower bound, searches for layouts under a
// target, which moves. It does so with coarser problems, in which blocks that fill a
// rectangle are glued together, and with the given one. Searches are depth first in the manner of MiniMalloc
// (Moffitt, ASPLOS 2023): blocks are placed in order of offset, each as low as
// it can go; a branch ends where what is left in some section of time no longer
// fits under the target, or where a block would leave a hole that another block
// fills; what falls apart into parts that never overlap in time is solved part
// by part. Where that fails they are breadth first with the best few partial
// layouts of each number of blocks. Before that, a layout of the coarsest problem from which blocks are left out is
// mended. Equal problems and options give equal layouts.
func Search(items []Item, opt Options) (Result, error) {
	res, err := Pack(items)
	if err != nil || res.Proven || res.Arena <= opt.Room {
		return res, err
	}
	if opt.Steps == 0 {
		opt.Steps = 1_000_000
	}
	steps := opt.Steps
	grain := grain(items)
	low := (res.LowerBound + grain - 1) / grain * grain // no layout is smaller
	done := func() bool {
		return steps <= 0 || res.Arena <= max(low, opt.Room) || opt.Stop != nil && opt.Stop()
	}
	goal := func() int64 { return max(low, opt.Room/grain*grain) }
	below := func(part int64) int64 { // the goal, or that part of the way to it
		return max(goal(), (res.Arena-(res.Arena-goal()+part-1)/part)/grain*grain)
	}
	views := views(items, opt.Stop)
	climb := func(v *view, target, share int64) bool {
		off, used, none := v.climb(target, min(share, steps))
		steps -= used
		if none && v.glued.parts == nil {
			low = max(low, target+grain)
		}
		return res.take(items, v.layout(off))
	}
	// The goal first: reaching it ends the search. A few blocks are all tried as they are.
	fine := views[len(views)-1]
	if len(items) <= small && !done() {
		climb(fine, goal(), opt.Steps/8)
	}
	descend := func(v *view, share int64) {
		for share = max(share, 4*shortLimit*int64(len(v.items))); !done() && climb(v, below(4), share); {
		}
	}
	for _, v := range views[:len(views)-1] {
		if !done() {
			climb(v, goal(), opt.Steps/32)
		}
	}
	// A quarter of what is left to gain at a time is cheap until it fails.
	for _, v := range views[:len(views)-1] {
		descend(v, opt.Steps/64)
	}
	if views[0].mends(min(opt.Steps*3/8, steps)) && !done() {
		off, used := views[0].mend(goal(), min(opt.Steps*3/8, steps))
		steps -= used
		res.take(items, views[0].layout(off))
	}
	if !done() && !climb(fine, goal(), max(opt.Steps/8, min(opt.Steps/2, fine.easy()))) && fine.near(goal()) && !done() {
		climb(fine, goal(), opt.Steps/4)
	}
	for _, v := range views {
		descend(v, opt.Steps/16)
	}
	// Then three things in turn: half of what is left to gain, breadth first; the goal, with more of the same; a part
	// of what is left to gain, which shrinks while nothing comes of it.
	for part, round := int64(2), 0; !done(); round++ {
		v := views[round/3%len(views)]
		switch round % 3 {
		case 0:
			off, used := v.broad(below(part), steps, noise*float64(min(round/3/len(views), 1)))
			steps -= used
			res.take(items, v.layout(off))
		case 1:
			if v.near(goal()) {
				climb(v, goal(), opt.Steps/4)
			}
		case 2:
			if part++; climb(v, below(part), opt.Steps/8) {
				part = 2
			}
		}
	}
	res.LowerBound = max(res.LowerBound, min(low, res.Arena))
	res.Proven = res.Arena == res.LowerBound
	return res, nil
}

// view is a search of the given problem or of a coarser one.
type view struct {
	*searcher
	glued coarse // without parts: the given problem
	n     int    // given blocks
}

// layout is the layout of the given blocks that one of the view's stands for.
func (v *view) layout(off []int64) []int64 {
	if off == nil || v.glued.parts == nil {
		return off
	}
	return v.glued.expand(v.n, off)
}

// views lists coarser problems, the coarsest first, and as the last the given one.
func views(items []Item, stop func() bool) []*view {
	sizes := make([]int64, len(items))
	for i, it := range items {
		sizes[i] = it.Size
	}
	slices.Sort(sizes)
	var list []*view
	last := 0
	for _, c := range []coarse{coarsen(items, 0, false), coarsen(items, 0, true), coarsen(items, sizes[len(sizes)/2], true)} {
		if n := len(c.items); n < len(items) && n != last {
			list = append(list, &view{newSearcher(c.items), c, len(items)})
			last = n
		}
	}
	list = append(list, &view{searcher: newSearcher(items), n: len(items)})
	for _, v := range list {
		v.stop = stop
	}
	return list
}

// take keeps a layout if it is smaller than what res has, and says whether it is one at all.
func (res *Result) take(items []Item, off []int64) bool {
	if off == nil {
		return false
	}
	var top int64
	for i, it := range items {
		top = max(top, off[i]+it.Size)
	}
	if top < res.Arena {
		res.Offsets, res.Arena = off, top
	}
	return true
}

// grain is the greatest number that divides all offsets and ends of a layout in which every block lies at the
// bottom or on others: what sizes and alignments have in common.
func grain(items []Item) int64 {
	var g int64
	for _, it := range items {
		if it.Size == 0 {
			continue
		}
		for _, x := range [2]int64{it.Size, max(it.Align, 1)} {
			if x == 1 && it.Align <= 1 && it.Size != 1 {
				continue // any offset will do
			}
			for x > 0 {
				g, x = x, g%x
			}
		}
	}
	return max(g, 1)
}

// sections lists the times at which a block starts or has ended, ascending. Fewer would do, those between a start
// and the next end, but the climb does worse with them: blocks that had no room are counted by section.
func sections(items []Item) []int {
	var times []int
	for _, it := range items {
		if it.Size > 0 {
			times = append(times, it.Start, it.End+1)
		}
	}
	sort.Ints(times)
	k := 0
	for i, t := range times {
		if i == 0 || t != times[k-1] {
			times[k] = t
			k++
		}
	}
	return times[:k]
}

// searcher holds the state of the depth-first search. Time is cut into sections;
// block i covers sections lo[i] to hi[i].
type searcher struct {
	items  []Item
	lo, hi []int32
	floor  []int64   // by section: end of the highest block placed
	rest   []int64   // by section: bytes of blocks not placed yet
	most   []int64   // by group of sections: the most of rest
	least  []int64   // by section: lowest offset, at or above that of the block placed last, that one left can have; cap if there is none
	in     [][]int32 // by section: its blocks
	open   []int64   // by block: off until it is placed, closed from then on
	stale  []int32   // by section: scratch of place, the number of the last placement that changed it
	count  int32     // of placements
	off    []int64   // by block: lowest offset it can have; final once placed
	rank   []int32   // by block: preference among candidates of equal offset
	cap    int64
	left   int64 // placements that may still be tried in this run
	dice
	blame   []float64 // by block: how often it was left where nothing fit any more
	stop    func() bool
	ascents map[int64]*ascent // by target
	mender  *mender           // of the last target
	pool    []int32           // blocks that are left, of all parts on the way down
	log     []placement
	undoO   []offChange
	undoF   []int64
	undoL   []leastChange

	// Sections of the last failure: from the first to the last of the blocks that had no room.
	failLo, failHi int32
	// jump takes back placements that have nothing to do with the last failure without trying others in their
	// place. That is not sound, since offsets never fall from one placement to the next: jumped says that it happened.
	jump, jumped bool
	deepest      int // most blocks placed at a time
}

// ascent is how far the climb to a target has got.
type ascent struct {
	round     int
	best, now []float64 // preferences, the larger the sooner: the best, and those in use
	most      int       // blocks placed under the best
	calm      int       // searches since that last rose
	starts    int
	reach     int // most blocks placed at all
}

// easy is how many placements a climb tries before it climbs.
func (s *searcher) easy() int64 { return 2 * preferences * easyLimit * int64(len(s.items)) }

// near reports whether a climb to a target placed two blocks in three: one that ends far below rarely gets there.
func (s *searcher) near(cap int64) bool {
	a := s.ascents[cap]
	return a != nil && 3*a.reach >= 2*len(s.items)
}

// closed is above all offsets.
const closed = 1 << 62

// group is the number of sections that are looked at together.
const group = 32

// placement is an entry of the undo log: a block, and how long the other two
// logs were before it.
type placement struct {
	block                int32
	offs, floors, leasts int
}

type leastChange struct {
	section int32
	least   int64
}

type offChange struct {
	block int32
	off   int64
}

func newSearcher(items []Item) *searcher {
	n := len(items)
	s := &searcher{items: items, lo: make([]int32, n), hi: make([]int32, n), off: make([]int64, n),
		rank: make([]int32, n), blame: make([]float64, n), ascents: map[int64]*ascent{}, dice: 2}
	times := sections(items)
	for i, it := range items {
		s.lo[i] = int32(sort.SearchInts(times, it.Start))
		s.hi[i] = int32(sort.SearchInts(times, it.End+1)) - 1
	}
	k := len(times)
	s.floor = make([]int64, k)
	s.rest = make([]int64, k)
	s.most = make([]int64, k/group+1)
	s.least = make([]int64, k)
	s.in = make([][]int32, k)
	s.stale = make([]int32, k)
	s.open = make([]int64, n)
	for i, it := range items {
		if it.Size == 0 {
			continue
		}
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			s.in[k] = append(s.in[k], int32(i))
		}
	}
	return s
}

// climb looks for a layout within cap and returns it with the number of placements tried, or says that none
// exists, which it knows where a search has been exhausted. It climbs: short
// depth-first searches, each under preferences that differ a little from the best so far, which are those
// under which most blocks found a place. Blocks that had no room are preferred more. A solution that such
// a search finds at all it finds almost without backtracking, so many short searches beat few long ones.
func (s *searcher) climb(cap int64, steps int64) (off []int64, used int64, none bool) {
	var all []int32
	for i, it := range s.items {
		if it.Size > 0 {
			all = append(all, int32(i))
		}
	}
	sort.SliceStable(all, func(a, b int) bool { return s.lo[all[a]] < s.lo[all[b]] })
	s.cap = cap
	a, known := s.ascents[cap]
	if !known {
		a = &ascent{best: make([]float64, len(s.items)), now: make([]float64, len(s.items)), calm: patience}
		s.ascents[cap] = a
	}
	for ; used < steps; a.round++ {
		if s.stop != nil && s.stop() {
			break
		}
		limit := int64(shortLimit * len(all))
		switch {
		case a.round < 2*preferences:
			s.start(a.round/2, all, a.now) // an easy problem needs no climbing
			limit = int64(easyLimit * len(all))
			if a.round == 0 && len(all) <= small {
				limit = max(limit, steps/4)
			}
		case a.calm == patience:
			s.start(a.starts, all, a.now)
			a.most, a.calm = 0, 0
			a.starts++
		default:
			s.vary(all, a.best, a.now)
		}
		s.reset(all, a.now)
		s.jump = a.round%2 == 1
		limit = min(limit, steps-used)
		s.left = limit
		list := append([]int32(nil), all...)
		ok := s.parts(list, 0, -1)
		used += limit - max(s.left, 0)
		a.reach = max(a.reach, s.deepest)
		if ok {
			return append([]int64(nil), s.off...), used, false
		}
		if s.left >= 0 && !s.jumped {
			return nil, used, true
		}
		if a.round < 2*preferences {
			continue
		}
		a.calm++
		if s.deepest >= a.most {
			if s.deepest > a.most {
				a.calm = 0
			}
			a.most = s.deepest
			copy(a.best, a.now)
		}
	}
	return nil, used, false
}

const (
	preferences = 6    // to start from
	easyLimit   = 16   // placements for each block in a search under these
	shortLimit  = 2    // in one that climbs
	patience    = 80   // searches without progress before the next start
	noise       = 0.03 // of what broad compares, from the second time on
	small       = 64   // blocks of a problem that may well be searched exhaustively
)

// reset takes every block out and orders candidates by score.
func (s *searcher) reset(all []int32, score []float64) {
	for k := range s.floor {
		s.floor[k], s.rest[k], s.least[k] = 0, 0, 0
	}
	for _, i := range all {
		s.off[i], s.open[i] = 0, 0
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			s.rest[k] += s.items[i].Size
		}
	}
	for k, r := range s.rest {
		if k%group == 0 {
			s.most[k/group] = 0
		}
		s.most[k/group] = max(s.most[k/group], r)
	}
	s.log, s.undoO, s.undoF, s.undoL = s.log[:0], s.undoO[:0], s.undoF[:0], s.undoL[:0]
	s.deepest, s.jumped = 0, false
	order := append([]int32(nil), all...)
	sort.SliceStable(order, func(a, b int) bool { return score[order[a]] > score[order[b]] })
	for r, i := range order {
		s.rank[i] = int32(r)
	}
}

// dice draws the same numbers each time.
type dice uint64

// random is uniform in [0, 1).
func (d *dice) random() float64 {
	*d = *d*6364136223846793005 + 1442695040888963407
	return float64(*d>>40) / (1 << 24)
}

// vary writes a variation of best to now.
func (s *searcher) vary(all []int32, best, now []float64) {
	var most float64
	for _, i := range all {
		most = max(most, s.blame[i])
	}
	const step, share = 0.15, 0.05
	for _, i := range all {
		now[i] = best[i]
		switch {
		case most > 0 && s.random() < s.blame[i]/most:
			now[i] += step * s.random()
		case s.random() < share:
			now[i] += step * (2*s.random() - 1)
		}
		s.blame[i] *= 0.5
	}
}

// start writes the preferences of the n-th start to score: blocks that are long, large, or in crowded
// sections first, and after each of these has had its turn, the same with noise.
func (s *searcher) start(n int, all []int32, score []float64) {
	load := make([]int64, len(s.floor)) // bytes in use by section
	for _, i := range all {
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			load[k] += s.items[i].Size
		}
	}
	peak := make([]int64, len(s.items))
	for _, i := range all {
		s.blame[i] = 0
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			peak[i] = max(peak[i], load[k])
		}
	}
	width := func(i int32) float64 { return float64(s.items[i].End-s.items[i].Start) + 1 }
	size := func(i int32) float64 { return float64(s.items[i].Size) }
	total := func(i int32) float64 { return float64(peak[i]) }
	key := [preferences]func(i int32) [3]float64{
		func(i int32) [3]float64 { return [3]float64{width(i), size(i) * width(i), total(i)} },
		func(i int32) [3]float64 { return [3]float64{total(i), size(i) * width(i), width(i)} },
		func(i int32) [3]float64 { return [3]float64{total(i), width(i), size(i) * width(i)} },
		func(i int32) [3]float64 { return [3]float64{size(i) * width(i), total(i), width(i)} },
		func(i int32) [3]float64 { return [3]float64{size(i), width(i), total(i)} },
		func(i int32) [3]float64 { return [3]float64{total(i) * width(i), size(i), 0} },
	}[n%preferences]
	keys := make([][3]float64, len(s.items))
	for _, i := range all {
		keys[i] = key(i)
	}
	order := append([]int32(nil), all...)
	sort.SliceStable(order, func(a, b int) bool {
		x, y := keys[order[a]], keys[order[b]]
		for k := range x {
			if x[k] != y[k] {
				return x[k] > y[k]
			}
		}
		return false
	})
	noise := 0.0
	if n >= preferences {
		noise = 0.3
	}
	for r, i := range order {
		score[i] = float64(len(order)-r)/float64(len(order)) + noise*(s.random()-0.5)
	}
}

// parts solves blocks (sorted by start, none placed) that may fall apart into
// groups that never overlap in time. last and latest are the offset and the
// rank of the block placed before, among those that they were with.
func (s *searcher) parts(blocks []int32, last int64, latest int32) bool {
	type span struct{ from, to int }
	var buf [8]span
	list := buf[:0]
	from := 0
	reach := int32(-1)
	for k, i := range blocks {
		if k > from && s.lo[i] > reach {
			list = append(list, span{from, k})
			from = k
		}
		reach = max(reach, s.hi[i])
	}
	if from < len(blocks) {
		list = append(list, span{from, len(blocks)})
	}
	if len(list) > 1 {
		// Small parts first: they fail fast.
		for k := 1; k < len(list); k++ {
			for j := k; j > 0 && list[j-1].to-list[j-1].from > list[j].to-list[j].from; j-- {
				list[j-1], list[j] = list[j], list[j-1]
			}
		}
	}
	mark := len(s.log)
	for _, p := range list {
		if !s.part(blocks[p.from:p.to], last, latest) {
			s.rewind(mark)
			return false
		}
	}
	return true
}

// part solves blocks that hang together.
func (s *searcher) part(blocks []int32, last int64, latest int32) bool {
	if len(blocks) == 0 {
		return true
	}
	s.deepest = max(s.deepest, len(s.log))
	// A block that starts at or above the end that another could have is
	// dominated: the other fits below it.
	lowest := int64(1) << 62
	for _, i := range blocks {
		lowest = min(lowest, max(s.off[i], last)+s.items[i].Size)
	}
	var buf [32]int32
	cand := buf[:0]
	for _, i := range blocks {
		if o := s.off[i]; o < lowest && o >= last && (o > last || s.rank[i] > latest) {
			cand = append(cand, i)
		}
	}
	from, to := s.lo[blocks[0]], int32(0)
	for _, i := range blocks {
		to = max(to, s.hi[i])
	}
	mine := len(s.pool)
	defer func() { s.pool = s.pool[:mine] }()
	for n := range cand {
		// The next by offset, then preference. Most are never asked for, so they are not sorted.
		for k := n + 1; k < len(cand); k++ {
			x, y := cand[k], cand[n]
			if s.off[x] < s.off[y] || s.off[x] == s.off[y] && s.rank[x] < s.rank[y] {
				cand[k], cand[n] = y, x
			}
		}
		c := cand[n]
		if s.left--; s.left < 0 {
			return false
		}
		mark := len(s.log)
		if s.place(c, blocks, from, to) {
			s.pool = s.pool[:mine]
			for _, i := range blocks {
				if i != c {
					s.pool = append(s.pool, i)
				}
			}
			if s.parts(s.pool[mine:], s.off[c], s.rank[c]) {
				return true
			}
		}
		s.rewind(mark)
		if s.left < 0 {
			return false
		}
		if s.jump && (s.hi[c] < s.failLo || s.lo[c] > s.failHi) {
			s.jumped = true
			return false // something else in its place would fail alike
		}
	}
	return false
}

// place puts block c at its lowest offset, and reports whether what is left of
// its part can still fit.
func (s *searcher) place(c int32, blocks []int32, from, to int32) bool {
	s.log = append(s.log, placement{c, len(s.undoO), len(s.undoF), len(s.undoL)})
	s.open[c] = closed
	at := s.off[c]
	top := at + s.items[c].Size
	lo, hi := s.lo[c], s.hi[c]
	for k := lo; k <= hi; k++ {
		s.undoF = append(s.undoF, s.floor[k])
		s.floor[k] = top
		s.rest[k] -= s.items[c].Size
	}
	for g := lo / group; g <= hi/group; g++ {
		s.most[g] = slices.Max(s.rest[g*group : min((g+1)*group, int32(len(s.rest)))])
	}
	if top > s.cap {
		s.failLo, s.failHi = lo, hi
		return false
	}
	// What is left of a section lies above its floor, and at or above the offset of c. Under the floors that c does not
	// change it had room before.
	k := s.crowded(from, lo-1, s.cap-at)
	if k < 0 {
		k = s.crowded(lo, hi, s.cap-top)
	}
	if k < 0 {
		k = s.crowded(hi+1, to, s.cap-at)
	}
	if k >= 0 {
		s.blameOn(k)
		if s.floor[k] < at {
			s.failLo, s.failHi = 0, 1<<30
		}
		return false
	}
	// It also lies at or above the lowest offset that any block left there can have, which changes where a block had it
	// that moves up or is c.
	s.count++
	first, last := hi+1, lo-1 // of the sections where it may have changed
	moves := func(i int32, off int64) {
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			if s.least[k] >= off {
				s.stale[k] = s.count
			}
		}
		first, last = min(first, s.lo[i]), max(last, s.hi[i])
	}
	for _, i := range blocks {
		if i == c || s.hi[i] < lo || s.lo[i] > hi {
			continue
		}
		if o := alignUp(top, s.items[i].Align); o > s.off[i] {
			s.undoO = append(s.undoO, offChange{i, s.off[i]})
			moves(i, s.off[i])
			s.off[i], s.open[i] = o, o
			if o+s.items[i].Size > s.cap {
				s.blame[i]++
				s.failLo, s.failHi = s.lo[i], s.hi[i]
				return false
			}
		}
	}
	moves(c, at)
	for k := first; k <= last; k++ {
		if s.stale[k] != s.count {
			continue
		}
		least := s.cap
		for _, i := range s.in[k] {
			if least = min(least, s.open[i]); least <= at {
				least = at // from here on, what is lower counts as this
				break
			}
		}
		if least != s.least[k] {
			s.undoL = append(s.undoL, leastChange{k, s.least[k]})
			s.least[k] = least
		}
		if r := s.rest[k]; r > 0 && max(least, at)+r > s.cap {
			s.blameOn(k)
			if least <= at {
				s.failLo, s.failHi = 0, 1<<30
			}
			return false
		}
	}
	return true
}

// crowded is the first of the sections from … to in which more than room is left, −1 if there is none.
func (s *searcher) crowded(from, to int32, room int64) int32 {
	for k := from; k <= to; {
		if k%group == 0 && s.most[k/group] <= room {
			k += group
			continue
		}
		if s.rest[k] > room {
			return k
		}
		k++
	}
	return -1
}

// blameOn counts a failure in section k against the blocks left there.
func (s *searcher) blameOn(k int32) {
	s.failLo, s.failHi = k, k
	for _, i := range s.in[k] {
		if s.open[i] != closed {
			s.failLo, s.failHi = min(s.failLo, s.lo[i]), max(s.failHi, s.hi[i])
			s.blame[i]++
		}
	}
}

// rewind takes placements back until the log has length n.
func (s *searcher) rewind(n int) {
	for len(s.log) > n {
		p := s.log[len(s.log)-1]
		s.log = s.log[:len(s.log)-1]
		for k := len(s.undoO) - 1; k >= p.offs; k-- {
			s.off[s.undoO[k].block], s.open[s.undoO[k].block] = s.undoO[k].off, s.undoO[k].off
		}
		s.undoO = s.undoO[:p.offs]
		for k := len(s.undoL) - 1; k >= p.leasts; k-- {
			s.least[s.undoL[k].section] = s.undoL[k].least
		}
		s.undoL = s.undoL[:p.leasts]
		c := p.block
		s.open[c] = s.off[c]
		for k := s.lo[c]; k <= s.hi[c]; k++ {
			s.floor[k] = s.undoF[p.floors+int(k-s.lo[c])]
			s.rest[k] += s.items[c].Size
			s.most[k/group] = max(s.most[k/group], s.rest[k])
		}
		s.undoF = s.undoF[:p.floors]
	}
}
