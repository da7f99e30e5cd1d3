package ops

import (
	"math"
	"testing"
)

// Every f16 and bf16 pattern must come back from f32, and rounding must pick the
// nearest neighbour, ties to the even pattern.
func TestHalfRoundTrip(t *testing.T) {
	for i := 0; i < 1<<16; i++ {
		h := uint16(i)
		if x := HalfToF32(h); x == x && F32ToHalf(x) != h {
			t.Fatalf("f16 %#04x -> %v -> %#04x", h, x, F32ToHalf(x))
		} else if x != x && F32ToHalf(x)&0x7fff <= 0x7c00 {
			t.Fatalf("f16 NaN %#04x lost", h)
		}
		if x := BF16ToF32(h); x == x && F32ToBF16(x) != h {
			t.Fatalf("bf16 %#04x -> %v -> %#04x", h, x, F32ToBF16(x))
		} else if x != x && F32ToBF16(x)&0x7fff <= 0x7f80 {
			t.Fatalf("bf16 NaN %#04x lost", h)
		}
	}
	for h := uint16(0); h < 0x7bff; h++ {
		lo, hi := HalfToF32(h), HalfToF32(h+1)
		mid := float32((float64(lo) + float64(hi)) / 2)
		want := h + h&1 // ties to even
		if got := F32ToHalf(mid); got != want {
			t.Fatalf("f16 tie between %#04x and next: got %#04x", h, got)
		}
		if got := F32ToHalf(math.Nextafter32(mid, hi)); got != h+1 {
			t.Fatalf("f16 above tie of %#04x: got %#04x", h, got)
		}
		if got := F32ToHalf(math.Nextafter32(mid, lo)); got != h {
			t.Fatalf("f16 below tie of %#04x: got %#04x", h, got)
		}
	}
}
