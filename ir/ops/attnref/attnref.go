// Package attnref is the plain reference of the op attention and of its
// gradient: slow, obvious, and normative for every back end, bit for bit. Operands of f16 and
// bf16 are widened before and the result is rounded after.
//
// The order of arithmetic, f32 throughout (fl(x) is one rounding, fma has one):
//
// Queries are taken in blocks of 64 rows and keys in blocks of 64, both from 0.
// A key block counts for a query block where any row of the query block sees any
// key of it; only those are run, in order, and in them every key that exists
// takes part, an invisible one with p = +0 (its s is −inf).
//
// Forward, for query i, over the key blocks J that count for its query block,
// starting with m = −inf, l = 0, o = +0:
//
//	s_j   = fl(scale · c_j), c_j the fma chain of q_id·k_jd over increasing d from +0
//	m'    = max(m, max_j s_j)
//	alpha = exp(m − m')
//	p_j   = exp(s_j − m')
//	l     = fma(l, alpha, Σ_j p_j), the sum being the 64-partial tree
//	o_d   = o_d · alpha, then o_d = fma(p'_j, v_jd, o_d) over increasing j
//
// where p' = p without dropout, else +0 where dropped and fl(p · 1/(1−rate))
// where kept. At the end o_d = o_d / l and lse = m + log(l).
//
// Backward, with s_ij as above and p_ij = exp(s_ij − lse_i):
//
//	delta_i = Σ_d fl(dout_id · out_id), the 64-partial tree
//	dp_ij   = the fma chain of dout_id·v_jd over increasing d from +0;
//	          with dropout +0 where dropped, fl(dp · 1/(1−rate)) where kept
//	ds_ij   = fl(fl(p_ij · fl(dp_ij − delta_i)) · scale); +0 where invisible
//	dq_id   = fma chain of ds_ij·k_jd over increasing j
//	dk_jd   = fma chain of ds_ij·q_id over increasing query head of the group, then increasing i
//	dv_jd   = fma chain of p'_ij·dout_id in the same order
//
// each chain running over the pairs of blocks that count, from +0.
// The mask is that of a random op of shape [B,H,Tq,Tk] (docs/numerics.md).
package attnref

import (
	"math"

	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
)

// Block is the number of queries and of keys that are taken together.
const Block = 64

// shape is an attention with the number of keys before its first query.
type shape struct {
	*kern.Attention
	before int64
}

// Forward returns the attention of q [B,Tq,H,D] over k and v [B,Tk,Hk,D] as
// out [B,Tq,H,D], and the logarithm of the normaliser lse [B,H,Tq]. The key is
// read only with a.Dropout > 0.
func Forward(a *kern.Attention, q, k, v []float32, key *[16]byte) (out, lse []float32) {
	return ForwardAt(a, a.Tk-a.Tq, q, k, v, key)
}

// ForwardAt is Forward where before keys stand before the first query: with a.Causal,
// query i sees key j where j ≤ i + before. 0 ≤ before ≤ Tk − Tq.
func ForwardAt(at *kern.Attention, before int64, q, k, v []float32, key *[16]byte) (out, lse []float32) {
	a := shape{at, before}
	out = make([]float32, a.Batch*a.Tq*a.Heads*a.Dim)
	lse = make([]float32, a.Batch*a.Heads*a.Tq)
	mask := newMask(at, key)
	p := make([]float32, Block)
	for b := range a.Batch {
		for h := range a.Heads {
			for i := range a.Tq {
				o := out[qRow(a.Attention, b, i, h):][:a.Dim]
				m, l := float32(math.Inf(-1)), float32(0)
				for j0 := int64(0); j0 < seenBlocks(a, i)*Block; j0 += Block {
					n := min(Block, a.Tk-j0)
					bm := float32(math.Inf(-1))
					for j := range n {
						p[j] = score(a, q, k, b, h, i, j0+j)
						bm = maxOf(bm, p[j])
					}
					next := maxOf(m, bm)
					alpha := scalar.Exp32(m - next)
					m = next
					for j := range n {
						p[j] = scalar.Exp32(p[j] - m)
					}
					l = scalar.Fma32(l, alpha, treeSum(p[:n]))
					for d := range o {
						o[d] *= alpha
					}
					for j := range n {
						pj := mask.apply(p[j], b, h, i, j0+j)
						vj := v[kRow(a.Attention, b, j0+j, h):][:a.Dim]
						for d := range o {
							o[d] = scalar.Fma32(pj, vj[d], o[d])
						}
					}
				}
				for d := range o {
					o[d] /= l
				}
				lse[(b*a.Heads+h)*a.Tq+i] = m + scalar.Log32(l)
			}
		}
	}
	return out, lse
}

// Backward returns the gradients of q, k and v for the gradient dout of out,
// given the results out and lse of Forward.
func Backward(at *kern.Attention, q, k, v, out, lse, dout []float32, key *[16]byte) (dq, dk, dv []float32) {
	a := shape{at, at.Tk - at.Tq}
	dq, dk, dv = make([]float32, len(q)), make([]float32, len(k)), make([]float32, len(v))
	mask := newMask(at, key)
	prod := make([]float32, a.Dim)
	for b := range a.Batch {
		for h := range a.Heads {
			for i := range a.Tq {
				iq, row := qRow(a.Attention, b, i, h), (b*a.Heads+h)*a.Tq+i
				for d := range prod {
					prod[d] = dout[iq+int64(d)] * out[iq+int64(d)]
				}
				delta := treeSum(prod)
				for j := range min(seenBlocks(a, i)*Block, a.Tk) {
					jk := kRow(a.Attention, b, j, h)
					p, ds := float32(0), float32(0)
					if sees(a, i, j) {
						p = scalar.Exp32(score(a, q, k, b, h, i, j) - lse[row])
						dp := float32(0)
						for d := range a.Dim {
							dp = scalar.Fma32(dout[iq+d], v[jk+d], dp)
						}
						dp = mask.apply(dp, b, h, i, j)
						ds = float32(p*(dp-delta)) * a.Scale
						p = mask.apply(p, b, h, i, j)
					}
					for d := range a.Dim {
						dq[iq+d] = scalar.Fma32(ds, k[jk+d], dq[iq+d])
						dk[jk+d] = scalar.Fma32(ds, q[iq+d], dk[jk+d])
						dv[jk+d] = scalar.Fma32(p, dout[iq+d], dv[jk+d])
					}
				}
			}
		}
	}
	return dq, dk, dv
}

// sees reports whether query i may look at key j.
func sees(a shape, i, j int64) bool {
	return !a.Causal || j <= i+a.before
}

// seenBlocks is the number of key blocks that count for the query block of i.
func seenBlocks(a shape, i int64) int64 {
	keys := a.Tk
	if a.Causal {
		last := min(i/Block*Block+Block, a.Tq) - 1
		keys = last + a.before + 1
	}
	return (keys + Block - 1) / Block
}

// score is s_ij, −inf where the key is not seen.
func score(a shape, q, k []float32, b, h, i, j int64) float32 {
	if !sees(a, i, j) {
		return float32(math.Inf(-1))
	}
	iq, jk := qRow(a.Attention, b, i, h), kRow(a.Attention, b, j, h)
	s := float32(0)
	for d := range a.Dim {
		s = scalar.Fma32(q[iq+d], k[jk+d], s)
	}
	return s * a.Scale
}

// qRow is the offset of row [b, i, h] of q, out and their gradients.
func qRow(a *kern.Attention, b, i, h int64) int64 {
	return ((b*a.Tq+i)*a.Heads + h) * a.Dim
}

// kRow is the offset of the row of k and v that query head h reads at [b, j].
func kRow(a *kern.Attention, b, j, h int64) int64 {
	return ((b*a.Tk+j)*a.KVHeads + h/(a.Heads/a.KVHeads)) * a.Dim
}

// maxOf is the max of reductions: a if a > b or a is NaN, else b.
func maxOf(a, b float32) float32 {
	if a > b || a != a {
		return a
	}
	return b
}

// treeSum is the sum of reductions: 64 partials, then the pairwise tree.
func treeSum(x []float32) float32 {
	var part [kern.Lanes]float32
	for i, e := range x {
		part[i%kern.Lanes] += e
	}
	for s := kern.Lanes / 2; s > 0; s /= 2 {
		for i := range s {
			part[i] += part[i+s]
		}
	}
	return part[0]
}
