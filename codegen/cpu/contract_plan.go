package cpu

import (
	"fmt"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// contractScratch is the part of a worker's scratch that a contraction fills; the
// rest is for what an epilogue keeps.
const contractScratch = ScratchBytes - 96<<10

// contractOperand is one side of the product as the packing sees it.
type contractOperand struct {
	arg   int // kernel argument, where it has no prologue
	dt    dtype.Type
	w     int64   // stride along its own axis (rows of A, columns of B)
	k     []int64 // strides along the K axes
	batch []int64 // strides along the batch axes
	kind  contractKind
	path  contractPath
	width int // panel width in elements
	contractStaged
}

// contractPlan is every decision of a contraction that follows from its shape.
// "Rows" are the axis that is broadcast (M, or N when swapped), "columns" the axis
// along vector lanes.
type contractPlan struct {
	c       *kern.Contract
	t       Target
	form    contractForm
	swap    bool
	a, b    contractOperand
	rows    kern.Axis // StrideC is that of C
	cols    kern.Axis
	k       int64   // length of the whole chain
	kSizes  []int64 // K axes
	batches int64

	mr, nv, lanes int64 // micro-tile
	panels        int64 // panels of rows
	hLo           int64 // height of a short panel
	tall          int64 // the first panels, which are one row higher
	vecs          int64 // vectors of columns
	groups        int64 // units of nv vectors; the last may have rem
	rem           int64

	kc, nk       int64 // K block and their number
	tilesM       int64
	tilesN       int64
	colsOuter    bool // tile order: columns outer (B stays packed), else rows outer
	keepA, keepB bool // all K blocks of the operand's block stay in scratch
	stream       bool // B is used once or twice: read it where it lies, pack only a ragged edge
	kOuter       bool // K blocks outermost, over all tiles of a range, C holding the partial sums
	direct       bool // the micro-kernel works on C itself
	psA, psB     int64
	slotA, slotB int64 // elements of one K block of the operand's block
	ldBlock      int64 // row length of the partial block when not direct
	bytes        int64 // scratch used
	cost         float64
}

func (p *contractPlan) tiles() int64 { return p.batches * p.tilesM * p.tilesN }

// wholeBlock tells whether the sums of a whole tile have a place of their own, or only
// those of one panel of rows.
func (p *contractPlan) wholeBlock() bool { return p.direct || p.nk > 1 || p.swap }

// height of panel i is hLo, or one more for the tall ones.
func (p *contractPlan) hHi() int64 {
	if p.tall == 0 {
		return p.hLo
	}
	return p.hLo + 1
}

func contractRoundUp(x, m int64) int64 { return (x + m - 1) / m * m }
func contractCeilDiv(x, m int64) int64 { return (x + m - 1) / m }

// contractMakePlan decides how c is computed on t, from shape and types alone: the
// same contraction is cut the same way whatever the number of threads.
func contractMakePlan(c *kern.Contract, t Target) (*contractPlan, error) {
	p := &contractPlan{c: c, t: t, form: contractF32, batches: 1, k: 1}
	switch {
	case c.Acc == dtype.F64:
		p.form = contractF64
	case c.Acc != dtype.F32:
		return nil, fmt.Errorf("contraction %s accumulates in %s: only f32 and f64 have a packed kernel", c.Name, c.Acc)
	}
	for _, d := range []dtype.Type{c.A, c.B} {
		if !d.IsFloat() || (d == dtype.F64 && c.Acc == dtype.F32) {
			return nil, fmt.Errorf("contraction %s of %s by %s in %s has no packed kernel", c.Name, c.A, c.B, c.Acc)
		}
	}
	for _, ax := range c.K {
		p.k *= ax.Size
		p.kSizes = append(p.kSizes, ax.Size)
	}
	for _, ax := range c.Batch {
		p.batches *= ax.Size
	}
	kind := contractPlain
	if c.A == dtype.BF16 && c.B == dtype.BF16 && c.Acc == dtype.F32 {
		kind = contractSwapped
		if t == V4BF16 {
			kind, p.form = contractPaired, contractPairs
		}
	}
	a := contractOperand{arg: 0, dt: c.A, w: c.M.StrideA, kind: kind}
	b := contractOperand{arg: 1, dt: c.B, w: c.N.StrideB, kind: kind}
	a.pro, b.pro = c.ProA, c.ProB
	if a.pro != nil {
		b.arg = 0
	}
	for _, ax := range c.K {
		a.k = append(a.k, ax.StrideA)
		b.k = append(b.k, ax.StrideB)
	}
	for _, ax := range c.Batch {
		a.batch = append(a.batch, ax.StrideA)
		b.batch = append(b.batch, ax.StrideB)
	}
	p.lanes = int64(t.contractLanes(p.form))
	mr, nv := t.contractRegs()
	p.mr, p.nv = int64(mr), int64(nv)
	p.rows, p.cols = c.M, c.N
	direct := c.Epilogue == nil && c.Out == c.Acc
	// Few columns would leave lanes idle: put the other axis along them. And where C
	// can be written in place only that way, do so too.
	if contractSwapPays(c.M.Size, c.N.Size, p.lanes) || (direct && c.N.StrideC != 1 && c.M.StrideC == 1 && c.N.Size > 1) {
		p.swap = true
		a, b = b, a
		p.rows, p.cols = c.N, c.M
	}
	a.width, b.width = contractRow, int(p.lanes)
	for _, o := range []*contractOperand{&a, &b} {
		o.path = p.packPath(o)
	}
	p.a, p.b = a, b
	p.direct = direct && (p.cols.StrideC == 1 || p.cols.Size == 1)
	if p.batches*c.M.Size*c.N.Size == 0 {
		return p, nil
	}
	p.split()
	if err := p.choose(); err != nil {
		return nil, err
	}
	return p, nil
}

// contractSwapPays tells whether m rows along the lanes, n broadcast, takes clearly
// fewer steps than the reverse.
func contractSwapPays(m, n, lanes int64) bool {
	straight := m * contractRoundUp(n, lanes)
	swapped := n * contractRoundUp(m, lanes)
	return n < 64 && swapped*5 < straight*4
}

// packPath picks the packing routine for an operand's strides.
func (p *contractPlan) packPath(o *contractOperand) contractPath {
	switch {
	case o.pro != nil && o.pro.AlongK:
		return contractPathK
	case o.pro != nil:
		return contractPathW
	}
	last := int64(1)
	if len(o.k) > 0 {
		last = o.k[len(o.k)-1]
	}
	if o.kind != contractPlain && len(o.k) > 1 && p.kSizes[len(o.k)-1]%2 == 1 {
		return contractPathT
	}
	switch {
	case o.w == 1:
		return contractPathW
	case last == 1:
		return contractPathK
	}
	return contractPathG
}

// split cuts rows into panels of nearly equal height, so that at most two
// micro-kernel heights are needed and none runs nearly empty.
func (p *contractPlan) split() {
	// Few rows leave registers free: take more vectors at once.
	if p.rows.Size < p.mr {
		p.mr = p.rows.Size
		regs := int64(24)
		if p.t == V3 {
			regs = 12
		}
		p.nv = min(8, max(1, regs/max(1, p.mr)))
		p.nv = 1 << (bitsLen(p.nv) - 1)
	}
	p.panels = max(1, contractCeilDiv(p.rows.Size, p.mr))
	p.hLo = p.rows.Size / p.panels
	p.tall = p.rows.Size % p.panels
	p.vecs = contractCeilDiv(p.cols.Size, p.lanes)
	p.nv = max(1, min(p.nv, p.vecs))
	p.groups = contractCeilDiv(p.vecs, p.nv)
	p.rem = p.vecs % p.nv
}

func bitsLen(x int64) int {
	n := 0
	for ; x > 0; x >>= 1 {
		n++
	}
	return n
}

// choose fills in the blocking with the least estimated time.
func (p *contractPlan) choose() error {
	best := contractPlan{cost: -1}
	p.candidates(func(q *contractPlan) {
		if best.cost < 0 || q.cost < best.cost {
			best = *q
		}
	})
	if best.cost < 0 {
		return fmt.Errorf("contraction %s: no blocking fits the scratch of a worker", p.c.Name)
	}
	*p = best
	return nil
}

// unit is the groups of columns that tiles are cut between: strips of an epilogue begin at multiples of kern.Lanes.
func (p *contractPlan) unit() int64 { return max(1, kern.Lanes/(p.nv*p.lanes)) }

// candidates visits every blocking that fits the scratch, with its estimate.
func (p *contractPlan) candidates(visit func(*contractPlan)) {
	unit := p.unit()
	units := contractCeilDiv(p.groups, unit)
	if p.canStream() && p.streams(unit, units, visit) {
		return
	}
	// Strips of a prologue along the chain begin at multiples of kern.Lanes.
	quantum := int64(4)
	for _, o := range []contractOperand{p.a, p.b} {
		if o.pro != nil && o.pro.AlongK && p.k > kern.Lanes {
			quantum = kern.Lanes
		}
	}
	lastKC := int64(0)
	for _, target := range []int64{1536, 1024, 768, 640, 512, 384, 320, 256, 192} {
		nk := max(1, contractCeilDiv(p.k, target))
		kc := contractRoundUp(contractCeilDiv(max(1, p.k), nk), quantum)
		nk = max(1, contractCeilDiv(p.k, kc))
		if kc == lastKC {
			continue
		}
		lastKC = kc
		for _, tm := range contractCuts(p.panels) {
			if p.swap && !p.direct && tm > 1 {
				break // an epilogue row must be whole
			}
			for _, tn := range contractCuts(units) {
				for variant := range 10 {
					q := *p
					q.kOuter = variant >= 8
					q.kc, q.nk, q.tilesM, q.tilesN = kc, nk, tm, tn
					q.colsOuter = variant&1 == 0
					q.keepA, q.keepB = variant&2 != 0, variant&4 != 0
					if q.kOuter && (nk == 1 || !q.direct) {
						continue
					}
					if nk == 1 && !(q.keepA && q.keepB) {
						continue
					}
					q.layout(unit)
					if q.bytes > contractScratch {
						continue
					}
					q.cost = q.estimate(unit)
					visit(&q)
				}
			}
		}
	}
}

// canStream tells whether B can be read in place and is used too little to be packed.
func (p *contractPlan) canStream() bool {
	same := p.b.dt == dtype.F32 && p.form == contractF32 || p.b.dt == dtype.F64 && p.form == contractF64
	return same && p.b.pro == nil && p.b.path == contractPathW && len(p.b.k) == 1 && p.panels <= 2
}

// streams visits the plans that read B in place; false: none fits.
func (p *contractPlan) streams(unit, units int64, visit func(*contractPlan)) bool {
	found := false
	for _, tn := range contractCuts(units) {
		q := *p
		q.stream, q.kc, q.nk, q.tilesM, q.tilesN = true, contractRoundUp(max(1, p.k), 4), 1, 1, tn
		q.colsOuter, q.keepA, q.keepB = true, true, true
		if q.cols.Size%q.lanes != 0 && q.rem == 0 {
			q.rem = q.nv // the last group has the ragged edge
		}
		q.layout(unit)
		if q.bytes > contractScratch {
			continue
		}
		q.cost = q.estimate(unit)
		found = true
		visit(&q)
	}
	return found
}

// contractCuts lists sensible numbers of tiles for n units: all small ones, then ever
// fewer multiples of 6, which two and three threads share evenly.
func contractCuts(n int64) []int64 {
	var out []int64
	for i := int64(1); i <= n; {
		out = append(out, i)
		switch {
		case i < 12:
			i++
		case i < 24:
			i += 3
		default:
			i = (i + i/4 + 5) / 6 * 6
		}
	}
	return out
}

// layout computes panel strides and scratch use.
func (p *contractPlan) layout(unit int64) {
	rowsPacked := p.kc
	if p.form == contractPairs {
		rowsPacked = (p.kc + 1) / 2
	}
	// A packing routine may write up to a vector of rows past the end. The odd two
	// rows keep panels from falling on the same cache sets.
	slack := int64(0)
	if len(p.kSizes) > 1 {
		slack = p.lanes // the last run of an inner K axis begins anywhere
	}
	depth := contractRoundUp(rowsPacked+slack, 16) + 2
	p.psA, p.psB = contractRoundUp(depth*p.hHi(), 16)+16, depth*int64(p.b.width)
	maxPanels := contractCeilDiv(p.panels, p.tilesM)
	maxVecs := contractCeilDiv(contractCeilDiv(p.groups, unit), p.tilesN) * unit * p.nv
	p.slotA, p.slotB = maxPanels*p.psA, maxVecs*p.psB
	if p.stream {
		p.slotB = p.rem * p.psB
	}
	size := p.form.size()
	slots := func(keep bool) int64 {
		if keep {
			return p.nk
		}
		return 1
	}
	p.bytes = contractRoundUp(p.slotA*slots(p.keepA)*size, 64) + contractRoundUp(p.slotB*slots(p.keepB)*size, 64)
	if !p.direct {
		p.ldBlock = maxVecs*p.lanes + 16
		rows := p.hHi()
		if p.wholeBlock() {
			rows *= maxPanels
		}
		p.bytes += contractRoundUp(rows*p.ldBlock*size, 64)
		if p.swap {
			p.bytes += kern.Lanes * size // a row of C, turned
		}
	}
	for _, o := range []contractOperand{p.a, p.b} {
		if o.path == contractPathT {
			p.bytes += p.kc * 8
		}
	}
	p.bytes += p.stageBytes(maxPanels*p.hHi(), maxVecs*p.lanes)
}

// estimate is the modelled time that blockings are compared by.
func (p *contractPlan) estimate(unit int64) float64 { return p.cycles(unit, 1, 3) }

// cycles is the modelled time in cycles, averaged over from to to threads (times their
// number). The constants are measured on Zen 4.
func (p *contractPlan) cycles(unit, from, to int64) float64 {
	m, n, k := float64(p.rows.Size), float64(p.vecs*p.lanes), float64(p.k)
	bt := float64(p.batches)
	size := float64(p.form.size())
	kk := k
	if p.form == contractPairs {
		kk = k / 2
	}
	micro := bt * m * float64(p.vecs) * kk
	// Each call of the micro-kernel: prologue, and its accumulators in and out.
	calls := bt * float64(p.panels*p.groups*p.nk)
	over := calls*40 + bt*m*float64(p.vecs)*float64(2*p.nk)*1.5 + float64(p.tiles())*150
	// L2 has to hold the scratch and what is asked for while a block is worked on.
	room := float64(p.bytes)
	if !p.stream {
		if p.tilesM > 1 && p.colsOuter || p.nk > 1 && !p.kOuter && !p.keepA {
			room += m * k / float64(p.tilesM*p.nk) * float64(p.a.dt.Size())
		}
		if p.tilesN > 1 && !p.colsOuter || p.nk > 1 && !p.kOuter && !p.keepB {
			room += n * k / float64(p.tilesN*p.nk) * float64(p.b.dt.Size())
		}
	}
	over += micro * 0.1 * min(max(room/(1<<20)-0.8, 0), 1)
	if group := float64(p.kc*p.nv*p.lanes) * size; group > 110<<10 {
		over += micro * 0.015 // every panel of rows sweeps a long group of B
	}
	if p.wholeBlock() && p.panels < 8*p.tilesM && float64(p.slotB)*size > 256<<10 {
		over += micro * 0.015 // few panels pass by before the next group of a large block
	}
	if p.direct {
		passes, per := float64(2*p.nk-1), 0.02
		work := m / float64(p.tilesM) * n / float64(p.tilesN) * size
		if p.kOuter {
			work = m * n * size / 2
		}
		if p.nk > 1 && work > 256<<10 {
			per = 0.05
		}
		over += bt * m * n * size * passes * per
	}
	timesA, timesB, wholeA, wholeB := p.packings()
	// How many tiles in a row use a packed block.
	reuseA, reuseB := int64(1), int64(1)
	if !p.colsOuter || wholeA {
		reuseA = p.tilesN
	}
	if p.colsOuter || wholeB {
		reuseB = p.tilesM
	}
	packA := bt * p.packCost(p.a, m*k, timesA, reuseA)
	packB := bt * p.packCost(p.b, n*k, timesB, reuseB)
	if p.stream {
		packB = 0
		if n/float64(p.tilesN)*k*size > 512<<10 && p.panels > 1 {
			packB = bt * n * k * 0.5 // the second pass finds its block no longer in L2
		}
	}
	total := 0.0
	for th := from; th <= to; th++ {
		work := (micro + over) * p.imbalance(unit, th)
		for _, o := range []struct {
			cost  float64
			whole bool
		}{{packA, wholeA}, {packB, wholeB}} {
			if o.whole && p.batches < th {
				o.cost *= float64(th)
			}
			work += o.cost
		}
		total += work
	}
	return total / float64(to-from+1)
}

// packings is how often each operand is packed; whole: every thread packs all of it.
func (p *contractPlan) packings() (timesA, timesB float64, wholeA, wholeB bool) {
	timesA, timesB = float64(p.tilesN), float64(p.tilesM)
	wholeA = (p.keepA || p.kOuter || p.nk == 1) && p.tilesM == 1
	wholeB = (p.keepB || p.kOuter || p.nk == 1) && p.tilesN == 1
	if wholeA || (p.keepA || p.kOuter) && !p.colsOuter {
		timesA = 1
	}
	if wholeB || (p.keepB || p.kOuter) && p.colsOuter {
		timesB = 1
	}
	return timesA, timesB, wholeA, wholeB
}

// packCost is the cycles of packing an operand of elems elements a number of
// times. The source has been asked for by the tile before; where many tiles use one
// block, that one tile is too short for it.
func (p *contractPlan) packCost(o contractOperand, elems, times float64, reuse int64) float64 {
	per := 0.4
	if elems*float64(o.dt.Size()) > 512<<10 {
		per = 0.5
		if reuse > 8 {
			per = 0.9
		}
	}
	switch o.path {
	case contractPathG:
		per += 1.5
	case contractPathT:
		per += 4
	}
	if o.pro != nil {
		per += contractProCycles(o.pro, p.t)
	}
	return elems * per * times
}

// imbalance is the work of the busiest of th threads over the mean.
func (p *contractPlan) imbalance(unit, th int64) float64 {
	units := contractCeilDiv(p.groups, unit)
	cols := func(i int64) int64 { return min(units*i/p.tilesN*unit, p.groups) }
	rows := func(i int64) int64 { return p.panels * i / p.tilesM }
	per := p.tilesM * p.tilesN
	// before is the work of tiles 0 … t-1, in groups × panels.
	before := func(t int64) int64 {
		done, t := t/per*p.panels*p.groups, t%per
		if p.colsOuter {
			o, i := t/p.tilesM, t%p.tilesM
			return done + cols(o)*p.panels + (cols(o+1)-cols(o))*rows(i)
		}
		o, i := t/p.tilesN, t%p.tilesN
		return done + rows(o)*p.groups + (rows(o+1)-rows(o))*cols(i)
	}
	most := int64(0)
	for w := range th {
		most = max(most, before((w+1)*p.tiles()/th)-before(w*p.tiles()/th))
	}
	return float64(most*th) / float64(p.batches*p.panels*p.groups)
}
