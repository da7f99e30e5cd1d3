package kern

import "reprise/ir/dtype"

// Axis is one loop of a contraction with its element strides in the operands
// and the result; 0 where the operand does not vary along it.
type Axis struct {
	Size                      int64
	StrideA, StrideB, StrideC int64
}

// Contract is a contraction C[batch…, m, n] = Σ_k A[batch…, m, k]·B[batch…, k, n].
// Per element one chain of fma in increasing k starting at +0, K axes being
// nested in their order, the last fastest. bf16 by bf16 uses pairs (docs/numerics.md).
// Axes are already merged where strides allow; what remains beyond one M and one N
// axis stands in Batch.
type Contract struct {
	Name          string
	A, B          dtype.Type // operand element types
	Acc           dtype.Type // accumulator: f32 for f16, bf16, f32; f64 for f64
	Out           dtype.Type // element type of C when Epilogue is nil
	Batch         []Axis
	M, N          Axis
	K             []Axis
	LenA, LenB    int64 // elements of the operand buffers
	LenC          int64
	ProA, ProB    *Prologue // what computes an operand while it is read; the operand is then no argument
	Epilogue      *Epilogue
	Params        []Param // what prologues and epilogue read and write, after A, B (and C when Epilogue is nil)
	EpilogueFlops int64
}

// Buffers is the number of arguments before those of Params: A and B where no prologue computes
// them, and C where no epilogue stores it.
func (c *Contract) Buffers() int {
	n := 0
	for _, absent := range []bool{c.ProA != nil, c.ProB != nil, c.Epilogue != nil} {
		if !absent {
			n++
		}
	}
	return n
}

// Prologue computes a block of an operand of a contraction, which is packed at once and so never
// lies in memory as a whole. It fills rows Lo ≤ r < Hi of the operand's outer axis and columns
// 64·Base ≤ c < 64·Base + N of its inner one: element (r, c) goes to (r−Lo)·Ld + c−64·Base of one
// more parameter, number len(Params), of the operand's type. Along the chain the axis is its flat
// position (the last K axis fastest), along the other one m or n. Every element is rounded to the
// operand's type, so that it has the bits that it would have in memory.
type Prologue struct {
	Batch  *Var // i64, flat batch index, the last batch axis fastest
	Lo, Hi *Var // i64
	Base   *Var // i64
	N, Ld  *Var // i64
	AlongK bool // the inner axis is the chain; else the outer one is
	Body   []Stmt
	Flops  int64 // operations of one element, for estimates: costly ones count as Costly or Draw
}

// What a division or a root, and a random draw, count among operations of 1.
const (
	Costly = 8
	Draw   = 32
)

// Epilogue is run for every element of C once its chain is complete, a row (fixed
// batch and m) at a time in blocks of n that start at multiples of Lanes. Kernel
// parameters of its expressions count from 0 in Contract.Params.
type Epilogue struct {
	Batch *Var // i64, flat batch index, the last batch axis fastest
	M     *Var // i64
	N     *Var // i64, the strip's variable
	Acc   *Var // Contract.Acc, the finished chain of this lane
	Body  []Stmt
}

// Attention is scaled dot-product attention over q [B,Tq,H,D], k and v [B,Tk,Hk,D]
// (H a multiple of Hk: grouped queries), result [B,Tq,H,D]. All of these, and the
// gradient of the result, are of DType and computed with in f32; lse and the gradients
// of q, k and v are f32. The order of arithmetic is that of the op attention in
// docs/numerics.md. Backward selects the gradient kernel set.
type Attention struct {
	Name         string
	DType        dtype.Type // f32, f16 or bf16
	Batch, Heads int64
	KVHeads      int64
	Tq, Tk, Dim  int64
	Causal       bool // key j is seen by query i where j ≤ i + (Tk − Tq)
	Placed       bool // forward, Causal: an operand i32[] after v says what stands for Tk − Tq, cut to 0 … Tk − Tq
	Scale        float32
	Dropout      float32 // drop probability; 0: none, and no key operand
	RNG          uint32  // op id for the mask
	Backward     bool
}
