package exe_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"codeberg.org/sbinet/npyio"
	"github.com/stretchr/testify/require"

	"reprise/runtime/internal/fixture"
)

func readNpy[T any](t *testing.T, file []byte, n int) []T {
	t.Helper()
	xs := make([]T, n)
	require.NoError(t, npyio.Read(bytes.NewReader(file), &xs))
	return xs
}

func TestInfer(t *testing.T) {
	affine := buildProgram(t, fixture.Infer())
	x := npy("<f4", "(2, 3)", le(t, []float32{1, 2, 3, 4, 5, 6}))
	inputs := "the model's inputs are n i32[], x f32[2,3]"

	t.Run("outputs", func(t *testing.T) {
		p := affine.at(t)
		p.write("x.npy", x)
		p.write("n.npy", npy("<i8", "()", le(t, int64(4))))
		r := p.run("--input", "x=x.npy", "--input=n=n.npy", "--output", "out", "--json", "--repeat", "3", "--threads", "2")
		require.Equal(t, 0, r.status, r.stderr)
		y := p.read("out/out_y.npy")
		require.Equal(t, []float32{102, 204, 306, 408, 510, 612}, readNpy[float32](t, y, 6))
		require.Equal(t, npy("<f4", "(2, 3)", le(t, []float32{102, 204, 306, 408, 510, 612})), y, "as numpy writes it")
		require.Equal(t, npy("<i8", "()", le(t, int64(40))), p.read("out/z.npy"))
		var done struct {
			Done    bool
			Repeat  int
			Outputs []struct {
				Name, DType, File string
				Shape             []int
			}
			Promised int64 `json:"promised_peak_bytes"`
			Peak     int64 `json:"peak_rss_bytes"`
			Other    int64 `json:"other_rss_bytes"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &done))
		require.True(t, done.Done)
		require.Equal(t, 3, done.Repeat)
		require.Equal(t, "out/y", done.Outputs[0].Name)
		require.Equal(t, "f32", done.Outputs[0].DType)
		require.Equal(t, "out/out_y.npy", done.Outputs[0].File)
		require.Equal(t, []int{2, 3}, done.Outputs[0].Shape)
		require.LessOrEqual(t, done.Peak-done.Other, done.Promised)
		require.Less(t, done.Other, int64(16<<20))
	})

	t.Run("summary", func(t *testing.T) {
		p := affine.at(t)
		p.write("x.npy", x)
		r := p.run("--input", "x=x.npy")
		require.Equal(t, 0, r.status, r.stderr)
		require.Contains(t, r.stdout, "out/y f32[2,3] 102 204 306 408 510 612\nz i64[] ")
		require.Equal(t, r.stdout[:strings.Index(r.stdout, "\n")], strings.Split(p.run("--input", "x=x.npy", "--poison").stdout, "\n")[0])
	})

	t.Run("weights from a file", func(t *testing.T) {
		p := affine.at(t)
		p.write("x.npz", npz(t, zip.Store, "x.npy", x))
		p.write("w.safetensors", makeSafetensors(`{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"w.m":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[24,26]}}`, le(t, []float32{1, 1, 1, 1, 1, 1, 0})[:26]))
		r := p.run("--input", "x=x.npz", "--init", "w.safetensors", "--output", "out", "--quiet")
		require.Equal(t, result{}, r)
		require.Equal(t, []float32{3, 5, 7, 9, 11, 13}, readNpy[float32](t, p.read("out/out_y.npy"), 6))
	})

	t.Run("errors", func(t *testing.T) {
		p := affine.at(t)
		p.write("x.npy", x)
		p.write("text", []byte("text"))
		p.write("n.npy", npy("<f4", "()", make([]byte, 4)))
		p.write("far.npy", npy("<i8", "(1,)", le(t, int64(1<<40))))
		p.write("six.npy", npy("<i8", "(1,)", le(t, int64(6))))
		p.write("m.npz", npz(t, zip.Store, "y.npy", x))
		p.fails("data", `input "x" needs data: give --input NAME=FILE.npy`, inputs)
		p.fails("data", "cannot open none: No such file or directory", "look at the path: it is taken from the directory that the program runs in", "--input", "x=none")
		p.fails("data", `text is not an .npy file`, "save it with numpy.save", "--input", "x=text")
		p.fails("data", `n.npy has f32[] for input "n", which is i32[]`, "", "--input", "x=x.npy", "--input", "n=n.npy")
		p.fails("data", `far.npy: element 0, for input "n", is 1099511627776; it must lie in 0 … 4`, "", "--input", "x=x.npy", "--input", "n=far.npy")
		p.fails("data", `six.npy: element 0, for input "n", is 6; it must lie in 0 … 4`, "", "--input", "x=x.npy", "--input", "n=six.npy")
		p.fails("data", `m.npz has no array "x"`, "", "--input", "x=m.npz")
		p.fails("io", "cannot make directory none/out: No such file or directory", "", "--input", "x=x.npy", "--output", "none/out")
		p.fails("io", "cannot write text/out_y.npy: Not a directory; nothing was left behind", "", "--input", "x=x.npy", "--output", "text")
		require.Contains(t, p.run("--help").stdout, "\n\ninputs: "+strings.TrimPrefix(inputs, "the model's inputs are ")+"\noutputs: ")
		r := p.run("--input", "y=x.npy")
		require.Equal(t, 2, r.status)
		require.Equal(t, "affine: error: no input is named \"y\"\n  hint: "+inputs+"\n", r.stderr)
		for _, bad := range []string{"x", "=x.npy", "x="} {
			r = p.run("--input", bad)
			require.Equal(t, 2, r.status)
			require.Equal(t, "affine: error: --input "+bad+": want NAME=FILE.npy\n  hint: --help lists the flags\n", r.stderr)
		}
		require.Equal(t, 2, p.run("--data", "x.npy").status)
	})
}

func TestControlFlow(t *testing.T) {
	control := buildProgram(t, fixture.Control())
	for _, c := range []struct{ n, index, which int32 }{{0, 0, 100}, {1, 1, 101}, {10, 2, 102}, {1000, 3, 102}, {3, -1, 102}} {
		for _, threads := range []string{"1", "2", "3"} {
			t.Run(fmt.Sprint(c, threads), func(t *testing.T) {
				p := control.at(t)
				p.write("n.npy", npy("<i4", "()", le(t, c.n)))
				p.write("index.npy", npy("<i4", "()", le(t, c.index)))
				r := p.run("--input", "n=n.npy", "--input", "index=index.npy", "--output", ".", "--threads", threads, "--repeat", "20", "--poison")
				require.Equal(t, 0, r.status, r.stderr)
				sum, which := i32s(t, p.read("sum.npy")[128:]), i32s(t, p.read("which.npy")[128:])
				for i := range 64 {
					require.Equal(t, c.n*(c.n-1)/2+5*c.n, sum[i])
					require.Equal(t, c.which, which[i])
				}
			})
		}
	}
}

// TestConversions: integers are converted where they fit, floats rounded once.
func TestConversions(t *testing.T) {
	p := buildProgram(t, convertModel())
	for _, c := range []struct {
		input, descr string
		data         any
		want         any
	}{
		{"f16", "<f8", []float64{1 + 0x1p-11 + 0x1p-40, 65519, -0x1p-25 - 0x1p-50, 1e9}, []uint16{0x3c01, 0x7bff, 0x8001, 0x7c00}},
		{"f16", "<f2", []uint16{0x3c01, 0x8001, 0, 0x7c00}, []uint16{0x3c01, 0x8001, 0, 0x7c00}},
		{"bf16", "<f8", []float64{1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8, -0x1p-134, 3.4e38}, []uint16{0x3f81, 0x3f80, 0x8000, 0x7f80}},
		{"bf16", "<f4", []float32{1 + 0x1p-8, 1 + 3*0x1p-8, -2, 0x1p-133}, []uint16{0x3f80, 0x3f82, 0xc000, 1}},
		{"bf16", "<V2", []uint16{1, 2, 3, 0xffff}, []uint16{1, 2, 3, 0xffff}},
		{"f32", "<f2", []uint16{0x3555, 0x0001, 0xfbff, 0x8000}, []uint32{0x3eaaa000, 0x33800000, 0xc77fe000, 0x80000000}},
		{"f64", "<f4", []float32{1.5, -0x1p-149, 3, 4}, []float64{1.5, -0x1p-149, 3, 4}},
		{"i8", "<i8", []int64{-128, 127, 0, 1}, []int8{-128, 127, 0, 1}},
		{"u64", "<u2", []uint16{1, 65535, 0, 3}, []uint64{1, 65535, 0, 3}},
		{"i64", "|b1", []byte{1, 0, 1, 1}, []int64{1, 0, 1, 1}},
		{"bool", "|u1", []byte{1, 0, 1, 1}, []byte{1, 0, 1, 1}},
	} {
		p := p.at(t)
		p.write("x.npy", npy(c.descr, "(4,)", le(t, c.data)))
		r := p.run("--input", c.input+"=x.npy", "--output", ".", "--quiet")
		require.Equal(t, 0, r.status, r.stderr)
		got := p.read("out." + c.input + ".npy")
		require.Equal(t, le(t, c.want), got[len(got)-binary.Size(c.want):], "%s from %s", c.input, c.descr)
	}
	for _, c := range []struct {
		input, descr string
		data         any
		says         string
	}{
		{"i8", "<i8", []int64{0, 128, 0, 0}, `x.npy: element 1, for input "i8", is 128, which i8 cannot hold`},
		{"i8", "<i8", []int64{0, 0, -129, 0}, `x.npy: element 2, for input "i8", is -129, which i8 cannot hold`},
		{"u64", "<i4", []int32{0, 0, 0, -1}, `x.npy: element 3, for input "u64", is -1, which u64 cannot hold`},
		{"bool", "|u1", []byte{2, 0, 0, 0}, `x.npy: element 0, for input "bool", is 2, which bool cannot hold`},
		{"bool", "|b1", []byte{2, 0, 0, 0}, `x.npy: element 0, for input "bool", is 2, which bool cannot hold`},
	} {
		p := p.at(t)
		p.write("x.npy", npy(c.descr, "(4,)", le(t, c.data)))
		p.fails("data", c.says, "", "--input", c.input+"=x.npy")
	}
}
