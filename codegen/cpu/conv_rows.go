package cpu

import (
	"cmp"
	"slices"

	"github.com/llir/llvm/ir/value"
)

// What the kernels of convolutions share along the last dimension: columns of the output,
// in blocks, and the taps of each.

// convTaps are the taps of one dimension that exist for an output position:
// first, first+step, … < end, and the offset in the input of the first.
type convTaps struct{ first, end, offset int64 }

// between leaves out the taps before k and from end on; the end is at most first where none is left.
func (t convTaps) between(k, end, step, move int64) convTaps {
	if k > t.first {
		skip := attentionCeil(k-t.first, step)
		t.first, t.offset = t.first+skip*step, t.offset+skip*move
	}
	t.end = min(t.end, end)
	return t
}

// convBlocks are blocks of columns that are alike but for where they read: blocks
// first, first+step … .
type convBlocks struct {
	columns            []convTaps // offsets from where the block reads
	first, step, count int64
	offset, shift      int64 // where the first reads, and how much later the next
}

// blocks cuts the output columns into blocks of n, the last maybe of fewer.
func (g *convGen) blocks(n int64) []convBlocks {
	d := g.dim[2]
	// Columns a period apart lie alike between dilated inputs.
	period := d.InDilation / convGcd(d.InDilation, d.Stride)
	step := period / convGcd(period, n)
	total := attentionCeil(d.Out, n)
	var all []convBlocks
	for phase := range min(step, total) {
		from := len(all)
		for b := phase; b < total; b += step {
			columns := slices.Clone(g.taps[2][b*n : min(d.Out, (b+1)*n)])
			offset := int64(0)
			for _, t := range slices.Backward(columns) {
				if t.end > 0 {
					offset = t.offset
				}
			}
			for i, t := range columns {
				if t.end > 0 {
					columns[i].offset = t.offset - offset
				}
			}
			if l := len(all) - 1; l >= from && slices.Equal(all[l].columns, columns) {
				if all[l].count == 1 {
					all[l].shift = offset - all[l].offset
				}
				if offset == all[l].offset+all[l].count*all[l].shift {
					all[l].count++
					continue
				}
			}
			all = append(all, convBlocks{columns: columns, first: b, step: step, count: 1, offset: offset})
		}
	}
	return all
}

// convUnrolled is the most taps of a row that are written out.
const convUnrolled = 8

// columns carries the chains of rows over their taps of the last dimension. A row has as many registers
// of acc as there are weights to a tap; what it reads by a tap is loaded from its place beyond in.
func (g *convGen) columns(e *attentionFn, rows []convTaps, in value.Value, acc []value.Value,
	weights func(k value.Value) []value.Value, load func(p value.Value) value.Value) []value.Value {
	acc = slices.Clone(acc)
	vecs, step, move := len(acc)/len(rows), g.step[2], g.move(2)
	// read is what a row does by one of its taps.
	type read struct {
		row    int
		k      int64
		offset int64
	}
	// taps does some taps. What several rows read is loaded once: reads are in the order of their
	// places, which keeps the order of each row's taps.
	taps := func(in value.Value, base value.Value, reads []read) {
		slices.SortStableFunc(reads, func(a, b read) int { return cmp.Compare(a.offset, b.offset) })
		w := map[int64][]value.Value{}
		var x value.Value
		for i, r := range reads {
			if w[r.k] == nil {
				w[r.k] = weights(e.addI(base, r.k))
			}
			if i == 0 || r.offset != reads[i-1].offset {
				x = load(e.atI(in, r.offset))
			}
			for v, w := range w[r.k] {
				acc[r.row*vecs+v] = e.fma(x, w, acc[r.row*vecs+v])
			}
		}
	}
	// loop does the taps of t, several at once, for rows that have the same taps; it returns the first that is left.
	loop := func(t convTaps, r []int, left []convTaps) int64 {
		carried := []value.Value{in}
		for _, r := range r {
			carried = append(carried, acc[r*vecs:(r+1)*vecs]...)
		}
		keep := func(c []value.Value) {
			for i, r := range r {
				copy(acc[r*vecs:(r+1)*vecs], c[1+i*vecs:])
			}
		}
		n := attentionCeil(t.end-t.first, step) / g.atOnce
		end := t.first + n*g.atOnce*step
		keep(e.loop(attentionI(t.first), attentionI(end), g.atOnce*step, carried, func(k value.Value, c []value.Value) []value.Value {
			keep(c)
			var reads []read
			for i, r := range r {
				for j := range g.atOnce {
					reads = append(reads, read{r, j * step, left[i].offset + j*move})
				}
			}
			taps(c[0], k, reads)
			next := []value.Value{e.atI(c[0], g.atOnce*move)}
			for _, r := range r {
				next = append(next, acc[r*vecs:(r+1)*vecs]...)
			}
			return next
		}))
		return end
	}
	var span func(from, to int64, among []int)
	span = func(from, to int64, among []int) { // taps from ≤ k < to
		var r []int // the rows that have any
		var left []convTaps
		for _, row := range among {
			if t := rows[row].between(from, to, step, move); t.first < t.end {
				r, left = append(r, row), append(left, t)
			}
		}
		if len(r) == 0 {
			return
		}
		from, to = left[0].first, left[0].end
		all, phase := left[0], true // the taps that all have, where they are in phase
		for _, t := range left {
			from, to = min(from, t.first), max(to, t.end)
			all.first, all.end = max(all.first, t.first), min(all.end, t.end)
			phase = phase && (t.first-left[0].first)%step == 0
		}
		switch {
		case attentionCeil(to-from, step) <= convUnrolled:
			for ; from < to; from += g.atOnce {
				var reads []read
				for i, t := range left {
					t = t.between(from, min(to, from+g.atOnce), step, move)
					for k := t.first; k < t.end; k += step {
						reads = append(reads, read{r[i], k, t.offset + (k-t.first)/step*move})
					}
				}
				if len(reads) > 0 {
					taps(in, attentionI(0), reads)
					e.fence()
				}
			}
		case all.first == from && all.end == to:
			span(loop(all, r, left), to, r)
		case !phase:
			for p := range step {
				var some []int
				for i, t := range left {
					if t.first%step == p {
						some = append(some, r[i])
					}
				}
				span(from, to, some)
			}
		case all.first < all.end:
			span(from, all.first, r)
			span(all.first, all.end, r)
			span(all.end, to, r)
		default:
			for i := range r {
				span(from, to, r[i:i+1])
			}
		}
	}
	every := make([]int, len(rows))
	for i := range every {
		every[i] = i
	}
	span(0, g.dim[2].Kernel, every)
	return acc
}
