// Package cpu turns kernels into x86-64 objects, by LLVM IR and clang.
package cpu

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/llir/llvm/ir"
	"golang.org/x/sync/errgroup"

	"reprise/internal/diag"
	"reprise/ir/kern"
)

// Unit collects the kernels of one model and compiles them. Equal kernels are
// emitted once, whatever their names, and those of one shape at most twice (own.go). Symbols are a name and a hash of the content, so
// the same kernels give the same objects.
type Unit struct {
	target  Target
	parts   []*part
	helpers []*ir.Func // functions that kernels share, in the order in which they came
	shapes  map[string]*shape

	Objects *Objects // compiled before; nil: none
	lanes   int      // of a vector in kernels of the loop language; 0: those of the target's registers
}

// Launch is one function of the compiled code as the driver runs it.
type Launch struct {
	Symbol string
	Tiles  int64
	Own    []byte // what the last argument points to, aligned to 8 bytes; nil: there is no such argument
}

// NewUnit starts a unit.
func NewUnit(t Target) *Unit { return &Unit{target: t, shapes: map[string]*shape{}} }

// Kernel adds a kernel of the loop language, which it checks. Kernels that differ in
// the ids of their random ops or in numbers share their code.
func (u *Unit) Kernel(k *kern.Kernel) (Launch, error) {
	text, own := k.Shape()
	ls, err := u.family(k.Name, text, own, func(m *ir.Module, symbol string, reads kern.Own) ([]Launch, error) {
		if err := kern.Check(k); err != nil {
			return nil, err
		}
		err := emitKernel(m, k, u.target, cmp.Or(u.lanes, u.target.Lanes()), symbol, reads)
		return []Launch{{Symbol: symbol, Tiles: k.Tiles}}, err
	})
	if err != nil {
		return Launch{}, err
	}
	return ls[0], nil
}

// Contract adds a contraction. Like kernels, contractions that differ in the ids of random ops or in numbers
// share their code.
func (u *Unit) Contract(c *kern.Contract) ([]Launch, error) {
	text, own := c.Shape()
	return u.family(c.Name, text, own, func(m *ir.Module, symbol string, reads kern.Own) ([]Launch, error) {
		if err := kern.CheckContract(c); err != nil {
			return nil, err
		}
		return emitContract(m, c, u.target, symbol, reads)
	})
}

// Attention adds an attention or its gradient; layers share the code.
func (u *Unit) Attention(a *kern.Attention) ([]Launch, error) {
	plain := *a
	plain.Name, plain.RNG = "", 0
	var own kern.Own
	if a.Dropout > 0 {
		own.IDs = []uint32{a.RNG}
	}
	return u.family(a.Name, fmt.Sprintf("attention %+v\n", plain), own, func(m *ir.Module, symbol string, reads kern.Own) ([]Launch, error) {
		return emitAttention(m, a, u.target, symbol, reads)
	})
}

// family adds a kernel of any family by its shape. put writes the function, which reads what it is told to, and says how to
// launch it: not at all where there is nothing to compute.
func (u *Unit) family(name, text string, own kern.Own, put func(m *ir.Module, symbol string, reads kern.Own) ([]Launch, error)) ([]Launch, error) {
	s := u.shapes[text]
	if s == nil {
		s = &shape{}
		u.shapes[text] = s
	}
	f, missing, reads := s.choose(own)
	if missing {
		is := text
		if f == &s.common && len(s.first) > 0 {
			is = fmt.Sprintf("%snumbers %x\n", text, s.first)
		} else if f == &s.other {
			is = fmt.Sprintf("%sothers' numbers %x, but %v\n", text, s.first, s.differ)
		}
		p := u.part(symbolOf(name, is))
		ls, err := put(p.m, p.name, reads)
		if err != nil {
			return nil, err
		}
		*f = &function{ls}
		if len(ls) > 0 {
			u.keep(p)
		}
	}
	ls := slices.Clone((*f).launches)
	for i := range ls {
		ls[i].Own = ownBytes(reads)
	}
	return ls, nil
}

// symbolOf is a legal, speaking and unique function name.
func symbolOf(name, text string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, name)
	if len(clean) > 40 {
		clean = clean[:40]
	}
	h := sha256.Sum256([]byte(text))
	return "k_" + clean + "_" + hex.EncodeToString(h[:6])
}

// Modules are the LLVM IR texts of the unit.
func (u *Unit) Modules() []string {
	var out []string
	for _, m := range u.joined() {
		out = append(out, m.String())
	}
	return out
}

// Compile runs clang-19 on the unit's modules, several at a time, and returns the
// paths of the objects, which are written to dir. The objects depend on the kernels and the target only.
func (u *Unit) Compile(ctx context.Context, dir string) ([]string, error) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		return nil, errors.New("clang-19 was not found; install it: apt-get install -y clang-19")
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	modules := u.joined()
	out := make([]string, len(modules))
	for i, m := range modules {
		out[i] = filepath.Join(dir, fmt.Sprintf("kernels-%03d.o", i))
		g.Go(func() (err error) {
			defer diag.Recovered(&err)
			text := m.String()
			key := sha256.Sum256([]byte(u.target.String() + "\n" + text))
			if object := u.Objects.find(key); object != nil {
				return os.WriteFile(out[i], object, 0o600)
			}
			cmd := exec.CommandContext(ctx, clang, clangFlags(out[i])...)
			cmd.Stdin = strings.NewReader(text)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return fmt.Errorf("clang-19: %w: %s", err, firstLines(stderr.String(), 3))
			}
			if u.Objects == nil {
				return nil
			}
			object, err := os.ReadFile(out[i])
			u.Objects.keep(key, object)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		for _, path := range out {
			_ = os.Remove(path)
		}
		return nil, err
	}
	return out, nil
}

// clangFlags compile IR from standard input. The kernels come vectorised and
// unrolled as they should be; the input's name must not depend on anything.
func clangFlags(to string) []string {
	return []string{"-x", "ir", "-", "-c", "-o", to, "-O2", "-fPIC", "-ffp-contract=off", "-fno-ident",
		"-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops"}
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(s, "\n", n+1)
	if len(lines) > n {
		lines = lines[:n]
	}
	return strings.Join(lines, "\n")
}
