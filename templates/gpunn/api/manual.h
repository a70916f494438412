/* gpunn.h - v0.2 - neural networks for C: train and run them from one header.
 * MIT or public domain (end of file)
 *
 * Do this:
 *     #define GPUNN_IMPLEMENTATION            in exactly one C or C++ file, before the include
 *     #include "gpunn.h"                      everywhere else just the include
 * and compile it:
 *     cc -O3 -march=native app.c -lm                      (and -lpthread with a glibc older than 2.34)
 *     nvcc -O3 -arch=native app.c gpunn_cuda.cu -o app    (the same program on the GPU, where there is one)
 *
 * >>toc        grep -n '>>' gpunn.h lists every section
 *     doc      what gpunn is and is not, options, step by step, memory, errors, threads, limits
 *     config   version, language check, GPUNN_API, named arguments
 *     status   return codes
 *     device   where work runs
 *     model    models, tensors, parameters
 *     ops      the table of elementwise ops: the single source of each
 *     builders the table of the other ops; layers, reductions, shapes, losses
 *     train    forward and backward passes, optimizers, schedules
 *     group    several processes that train one model
 *     data     loaders
 *     files    weights, checkpoints, dataset readers
 *     lora     low-rank adapters, for fine-tuning
 *     quantization  from a trained model, one of 8-bit integers
 *     spec     models as JSON
 *     fit      the training loop, progress, history
 *     profile  where the time of a run goes
 *     backend  the interface of a backend
 *     kernels  fused kernels that the generator writes for a model
 *   Under GPUNN_IMPLEMENTATION the sections below follow; each uses those before it. Each is a file of
 *   templates/gpunn, from which this file is written (python3 -m generator.amalgamate). gpunn_cuda.cu
 *   includes those of common/ too.
 *     common/   traits geometry numbers places updates blocks
 *     base/     platform structs forward_declarations errors memory math blocks tables sizes shapes device
 *               model time json text
 *     ranks/    slices mpi store tcp group
 *     graph/    arguments tensors infer nodes expr differentiate
 *     layers/   basic recurrent random shapes reductions states attention einsum losses formulas
 *     plan/     steps storage sparse backward plan
 *     run/      run io bind inspect recompute
 *     cpu/      threads levels context elementwise initial vectors pixels move reduce indexing blocks
 *               gemm depthwise conv strips quantized pool sampling norm softmax loss attention recurrent
 *               optimizers cpu
 *     train/    optimizer step ranks schedule lora loader calibrate quantize fit profile
 *     io/       files elements safetensors load checkpoint save adapters gguf spec_writer spec_reader
 *               model_file datasets
 *
 * >>doc
 * The tests compile and run all code in this comment. Each piece stands by itself, after the declarations
 * that A PROGRAM makes before its training step.
 *
 * PURPOSE  A model is a graph of tensors, built by C calls with PyTorch's names and defaults. The first run
 *     plans it: order of work, gradients, memory. Later runs only compute, without allocation or lookup.
 *     Weights are safetensors files with PyTorch's names and shapes, so each side reads what the other wrote.
 *
 * A PROGRAM
 *         gpunn_device *dev   = gpunn_device_open(.seed = 1);
 *         gpunn_model  *model = gpunn_model_create(dev);
 *         gpunn_tensor *x     = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 20));
 *         gpunn_tensor *t     = gpunn_input(model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
 *         gpunn_tensor *h     = gpunn_relu(gpunn_linear(x, "fc1", .out_features = 50));
 *         gpunn_tensor *y     = gpunn_linear(h, "fc2", .out_features = 1);
 *         gpunn_tensor *loss  = gpunn_bce_with_logits(y, t);
 *         gpunn_optimizer *o  = gpunn_sgd(model, .lr = 0.01f);
 *         gpunn_write(x, samples, sizeof samples);
 *         gpunn_write(t, targets, sizeof targets);
 *         if (gpunn_train_step(o, loss) != GPUNN_OK) puts(gpunn_error(dev));
 *
 *     samples and targets are float[8][20] and float[8] here; their size in bytes determines the batch size
 *     8. In the end
 *
 *         gpunn_optimizer_destroy(o);
 *         gpunn_model_destroy(model);
 *         gpunn_device_close(dev);
 *
 *     in any order, each once; NULL is allowed.
 *
 * gpunn DOES NOT
 *     - trace or run Python, load ONNX, or build graphs whose shape depends on values;
 *     - change the shape of a parameter between runs: only sizes of inputs vary (SHAPES below);
 *     - exit, abort or keep global state: everything belongs to a gpunn_device;
 *     - print, except for the one line described in GPU below;
 *     - share a model or a device between threads without a lock of yours (THREADS below).
 *
 * STEP BY STEP
 *     1. gpunn_device_open                    the machine: a GPU if gpunn_cuda.cu finds one, else the CPU
 *     2. gpunn_model_create, gpunn_input      the inputs of the graph, with GPUNN_BATCH for the batch size
 *     3. layers, ops, a loss                  each call checks its shapes at once; a NULL operand gives NULL
 *     4. gpunn_sgd, gpunn_adam, ...           an optimizer over the model's parameters, or over some of them
 *     5. gpunn_write, gpunn_train_step        or a gpunn_loader, or gpunn_fit for the whole loop
 *     6. gpunn_forward, gpunn_read            evaluation mode: dropout off, running statistics used
 *     7. gpunn_save, gpunn_load               weights; gpunn_checkpoint_save for all that resuming needs
 *
 * BUILDING  The implementation takes some 10 to 25 seconds to compile. So put it in a file that never
 *     changes, gpunn.c, with two lines: #define GPUNN_IMPLEMENTATION and #include "gpunn.h". All other files
 *     just include the header and compile quickly.
 *         cc -c -O3 -march=native gpunn.c         once
 *         cc -O2 app.c gpunn.o -lm                at every edit
 *     -march=native uses all instructions of this processor; other processors may not run the program.
 *     Without it (or another -march), optimized code for x86-64 on Linux and macOS runs on all. It chooses
 *     among SSE2, AVX2 and AVX-512 at startup, is as fast within a few percent, and takes twice as long to
 *     compile. The environment variable GPUNN_VECTORS=sse2, avx2 or avx512 limits this choice. None of these
 *     values includes products of BF16 (PRECISION). bf16 allows those of AVX-512, amx those of AMX where it
 *     can.
 *     Define options before the include that has GPUNN_IMPLEMENTATION:
 *     GPUNN_STATIC       makes every function static: a private copy for this file (define it wherever
 *                        gpunn.h is included). The copy has only the ops that the file builds and compiles
 *                        faster. Without it a linker can drop unused ops (-ffunction-sections -fdata-sections
 *                        -Wl,--gc-sections). gpunn_spec_load needs all ops.
 *     GPUNN_API          your own linkage, such as __declspec(dllexport)
 *     GPUNN_MPI          ranks over MPI (compile with mpicc): RANKS
 *     GPUNN_CBLAS        matrix products by the system's CBLAS (link -lopenblas). Debian's OpenBLAS does not
 *                        know the newest processors: if it is slow, set OPENBLAS_CORETYPE=SKYLAKEX (or
 *                        HASWELL) in the environment
 *     GPUNN_ZLIB         readers accept .gz files (link -lz)
 *     GPUNN_NO_THREADS   no pthreads: the CPU computes on one thread, and loaders do not prefetch
 *     GPUNN_CUDA         gpunn.h references gpunn_cuda_backend strongly instead of weakly. Needed on Windows,
 *                        and if gpunn_cuda.cu is in a static or shared library, unless that is linked with
 *                        -Wl,-u,gpunn_cuda_backend
 *     GPUNN_NO_SIMD      plain C kernels
 *     GPUNN_NO_RANKS, GPUNN_NO_LOADERS, GPUNN_NO_SPECS, GPUNN_NO_GGUF, GPUNN_NO_DERIVATIVES,
 *     GPUNN_NO_PROFILE   leave out gpunn_group_open; loaders, gpunn_fit, gpunn_evaluate and files of arrays;
 *                        specs and model files; .gguf files, weights in their blocks and gpunn_read_header;
 *                        gpunn_grad and the functions after it; gpunn_profile. Compiling takes less time.
 *                        Define them wherever gpunn.h is included
 *     GPUNN_NO_IMPLEMENTATION   ignores GPUNN_IMPLEMENTATION: for linking a file that defines it with an
 *                        implementation that is already compiled
 *
 * LIBRARY  Build a shared library for other languages, and for programs that are not recompiled:
 *         cc -O3 -march=native -shared -fPIC -DGPUNN_IMPLEMENTATION -x c gpunn.h -o libgpunn.so -lm -lpthread
 *     Its ABI is that of GPUNN_VERSION. For one version, structs, enum values and functions keep layout,
 *     number and meaning; functions are only added. gpunn_version returns the linked version.
 *     gpunn_device_open rejects programs compiled with another version (args_). Each macro with named
 *     arguments, such as gpunn_linear, has a function with "_" appended that other languages call. It takes a
 *     struct by value, with zeros except for the fields you set.
 *     python3 -m generator.python and python3 -m generator.fortran write a module with all of it for these
 *     languages; examples/embedding uses them. Fortran ignores case, so constants such as GPUNN_MEAN, beside
 *     gpunn_mean, end in _VALUE there.
 *
 * NAMED ARGUMENTS  A field left out, or 0, means torch.nn's default. Write GPUNN_ZERO for an actual 0. A flag
 *     that torch.nn sets to true by default is therefore inverted here, with no_ before its name: bias=False
 *     is .no_bias = true.
 *         gpunn_tensor *image = gpunn_input(model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
 *         gpunn_tensor *conv  = gpunn_conv2d(image, "conv1", .out_channels = 6, .kernel_size = 5,
 *                                            .padding = 2);
 *         gpunn_optimizer *plain = gpunn_adam(model, .lr = 1e-3f, .beta1 = GPUNN_ZERO);
 *
 * DEVICES  A device is a GPU or the CPU, with its memory, random numbers, threads and first error. Most
 *     programs open one. gpunn_device_open uses the first GPU that works, otherwise the CPU; .type selects
 *     one of them.
 *         gpunn_device *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 2,
 *                                               .memory_limit = (size_t)1 << 30);
 *         if (cpu == NULL) puts(gpunn_error(NULL));
 *         else printf("%s, %d threads\n", gpunn_device_name(cpu), gpunn_device_threads(cpu));
 *         gpunn_device_close(cpu);
 *     gpunn_model_to moves a model with its optimizers to another device; training continues unchanged.
 *
 * TENSORS  Tensors belong to a model, which frees them. There are five kinds. The program writes an input. A
 *     parameter is trained and saved. A buffer (running statistics) is saved. A constant never changes. A
 *     value is the result of an op. Layers create their parameters themselves, named name.weight, name.bias,
 *     ...; gpunn_find finds them by these names.
 *         gpunn_tensor *weight = gpunn_find(model, "fc1.weight");
 *         gpunn_shape   shape  = gpunn_tensor_shape(weight); // {50, 20}, as torch.nn.Linear's
 *         static float  w[50][20];
 *         gpunn_read(weight, w, sizeof w);
 *         w[0][0] = (float)shape.dim[0];
 *         gpunn_write(weight, w, sizeof w);
 *     You can also create a parameter, with its initial values:
 *         gpunn_init    normal = {GPUNN_INIT_NORMAL, 0, 0.02f};
 *         gpunn_tensor *offset = gpunn_parameter(model, "offset", GPUNN_SHAPE(20), normal);
 *         gpunn_tensor *moved  = gpunn_add(x, offset);
 *     A program may hold doubles. Inputs of GPUNN_F64, and outputs after gpunn_set_dtype, are converted on
 *     the way in and out; gpunn computes in F32 only. gpunn_write_as converts other dtypes too. It knows what
 *     it is given, where gpunn_write would take doubles for twice as many floats:
 *         gpunn_tensor *cells = gpunn_input(model, "cells", GPUNN_F64, GPUNN_SHAPE(GPUNN_BATCH, 2));
 *         gpunn_tensor *rates = gpunn_linear(cells, "rates", .out_features = 1);
 *         gpunn_set_dtype(rates, GPUNN_F64);
 *         static double now[4][2], next[4];
 *         gpunn_write_as(cells, GPUNN_TYPED(now), sizeof now);
 *         gpunn_forward(&rates, 1);
 *         gpunn_read(rates, next, sizeof next);
 *
 * SHAPES  Tensors are row-major, with rank 0 (a scalar) to 8. Images are NCHW, volumes NCDHW. Sequences are
 *     as in torch's layers, [length, n, features] unless .batch_first is set. Elementwise ops broadcast as in
 *     NumPy. GPUNN_BATCH stands for the batch size, which is known when the inputs are written and may differ
 *     in each run. 4 * GPUNN_BATCH is four times the batch size. Reshaping keeps it symbolic:
 *         gpunn_tensor *sequence = gpunn_input(model, "s", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 16, 8));
 *         gpunn_tensor *rows     = gpunn_reshape(sequence, GPUNN_SHAPE(16 * GPUNN_BATCH, 8));
 *         gpunn_tensor *swapped  = gpunn_permute(sequence, GPUNN_AXES(1, 0, 2)); // [16, batch, 8]
 *         gpunn_tensor *first    = gpunn_slice(sequence, 1, 0, 4, 1);            // [batch, 4, 8]
 *         gpunn_tensor *means    = gpunn_mean(sequence, GPUNN_AXES(-1), false);  // [batch, 16]
 *
 *     Any other dimension of an input may vary too, if it has a name. Layers derive formulas from it, such as
 *     (H - 1) / 2 + 1 for a convolution with stride 2. Write a formula that the program itself needs as text:
 *         int64_t       T      = gpunn_size(model, "T", .max = 512);
 *         gpunn_tensor *speech = gpunn_input(model, "speech", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, T, 8));
 *         gpunn_tensor *frames = gpunn_reshape(speech, GPUNN_SHAPE(gpunn_size(model, "batch * T"), 8));
 *         gpunn_tensor *mean   = gpunn_mean(gpunn_linear(speech, "words", .out_features = 4), GPUNN_AXES(1),
 *                                           false);
 *         static float  sound[2 * 30 * 8];
 *         gpunn_write_shape(speech, sound, GPUNN_SHAPE(2, 30, 8)); // bytes tell one dimension, not two
 *         gpunn_tensor *heard[] = {frames, mean};
 *         gpunn_forward(heard, 2);
 *     Builders check what holds for all sizes. The rest is checked when a run first uses the sizes: all
 *     inputs of a run must agree. If a network halves an image and doubles it again, .multiple states that
 *     both sizes are equal; or use gpunn_interpolate with the size of the other tensor (examples/unet.c).
 *     With .lengths, loaders batch samples of similar length.
 *
 * LAYERS  Layers are functions of tensors, so C code describes the network. A residual block is an addition,
 *     two heads are two calls, and a layer in a loop gets its name from the loop.
 *         gpunn_tensor *z = h;
 *         for (int i = 0; i < 3; i++) {
 *             char name[16];
 *             snprintf(name, sizeof name, "block%d", i);
 *             z = gpunn_add(z, gpunn_silu(gpunn_linear(z, name, .out_features = 50)));
 *         }
 *     To share a weight between two layers, let the first create it and pass it to the second:
 *         gpunn_tensor *tied = gpunn_linear(h, "again", .weight = gpunn_find(model, "fc2.weight"),
 *                                           .no_bias = true);
 *     An op that is missing can often be written as a formula, which is as fast as a built-in op:
 *         gpunn_tensor *quick = gpunn_expr("x * sigmoid(1.702 * x)", &h, 1);
 *         gpunn_tensor *pair[] = {y, t};
 *         gpunn_tensor *focal  = gpunn_expr("p = sigmoid(x); -mean(y * (1 - p) ** 2 * log(p) + "
 *                                           "(1 - y) * p ** 2 * log(1 - p))", pair, 2);
 *
 * IMAGES  Images are [n, channels, height, width]. Every layer knows the shape of its result. So
 *     gpunn_flatten turns images into rows, and the next layer finds the number of features itself. A network
 *     that only its last layer ties to one size accepts any size if it takes a mean instead.
 *         gpunn_tensor *picture = gpunn_input(model, "picture", GPUNN_F32,
 *                                             GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
 *         gpunn_tensor *c1 = gpunn_conv2d(picture, "c1", .out_channels = 16, .kernel_size = 3, .padding = 1,
 *                                         .no_bias = true);
 *         c1 = gpunn_relu(gpunn_batch_norm2d(c1, "bn1"));
 *         // [batch, 16, 16, 16]
 *         c1 = gpunn_max_pool2d(c1, .kernel_size = 2);
 *         gpunn_tensor *c2 = gpunn_conv2d(c1, "c2", .out_channels = 16, .kernel_size = 3, .padding = 1);
 *         c2 = gpunn_relu(gpunn_add(c2, c1));                                             // a residual block
 *         gpunn_tensor *flat   = gpunn_flatten(c2);                                       // [batch, 4096]
 *         gpunn_tensor *pooled = gpunn_mean(c2, GPUNN_AXES(2, 3), false);                 // [batch, 16]
 *         gpunn_tensor *classes = gpunn_linear(gpunn_dropout(pooled, 0.2f), "classes", .out_features = 10);
 *         gpunn_tensor *finer  = gpunn_interpolate(c2, .scale_factor = 2, .mode = GPUNN_INTERPOLATE_LINEAR);
 *         gpunn_tensor *mirrored = gpunn_flip(finer, GPUNN_AXES(3));
 *         // [batch, 64, 16, 16]
 *         gpunn_tensor *squares  = gpunn_pixel_unshuffle(mirrored, 2);
 *         gpunn_tensor *contrast = gpunn_std(squares, GPUNN_AXES(2, 3), 1, false);        // [batch, 64]
 *     For pictures stored as U8, convert to F32 at the start of the network: gpunn_expr("(x / 255 - 0.45) /
 *     0.22", ...) of a gpunn_cast.
 *
 * SEQUENCES  Words are integers, which an embedding turns into rows. Recurrent layers read [length, n,
 *     features] or, with .batch_first, [n, length, features]. If the samples of a batch have different
 *     lengths, .lengths stops each at its own.
 *         gpunn_tensor *words   = gpunn_input(model, "words", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 12));
 *         gpunn_tensor *lengths = gpunn_input(model, "lengths", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
 *         gpunn_tensor *vectors = gpunn_embedding(words, "embedding", .num_embeddings = 1000,
 *                                                 .embedding_dim = 16);
 *         // [layers * directions, batch, hidden]: the state behind each sample's last word
 *         gpunn_tensor *h_n     = NULL;
 *         gpunn_tensor *steps   = gpunn_lstm(vectors, "lstm", .hidden_size = 24, .num_layers = 2,
 *                                            .batch_first = true,
 *                                            .lengths = lengths, .h_n = &h_n);            // [batch, 12, 24]
 *         gpunn_tensor *next    = gpunn_linear(steps, "next", .out_features = 1000);      // of each step
 *         gpunn_tensor *targets_of_words = gpunn_input(model, "following", GPUNN_I64,
 *                                                      GPUNN_SHAPE(GPUNN_BATCH, 12));
 *         // classes stand at axis 1
 *         gpunn_tensor *by_class = gpunn_permute(next, GPUNN_AXES(0, 2, 1));
 *         gpunn_tensor *words_loss = gpunn_cross_entropy(by_class, targets_of_words, .ignore_index = -100);
 *         gpunn_tensor *told = gpunn_sequence_mask(lengths, 12); // [batch, 12], 1 before each sample's end
 *     -100, the default of .ignore_index, marks positions after the end of a sample, which the loss ignores.
 *
 * ATTENTION  gpunn_scaled_dot_product_attention is torch's function. gpunn_multi_head_attention and the
 *     transformer layers are torch.nn's, with the same parameter names, so that their weights load.
 *         gpunn_tensor *tokens = gpunn_input(model, "tokens", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 12, 32));
 *         gpunn_tensor *encoded = gpunn_transformer_encoder(tokens, "encoder", .nhead = 4,
 *                                                           .dim_feedforward = 64, .num_layers = 2,
 *                                                           .batch_first = true, .gelu = true);
 *         gpunn_tensor *qkv    = gpunn_linear(encoded, "qkv", .out_features = 96);
 *         gpunn_tensor *causal = gpunn_scaled_dot_product_attention(
 *             gpunn_reshape(qkv, GPUNN_SHAPE(GPUNN_BATCH, 12, 3, 4, 8)), NULL, NULL, .is_causal = true);
 *         gpunn_tensor *joined = gpunn_reshape(causal, GPUNN_SHAPE(GPUNN_BATCH, 12, 32));
 *     For positions, add an embedding to the tokens or, as in Llama, rotate queries and keys:
 *         // [n, l, heads, e]
 *         gpunn_tensor *query  = gpunn_input(model, "query", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 12, 4, 8));
 *         // 0 to 11, or further
 *         gpunn_tensor *places = gpunn_input(model, "places", GPUNN_I64, GPUNN_SHAPE(12));
 *         gpunn_tensor *turned = gpunn_rotary_embedding(query, places, .theta = 10000, .heads_last = true);
 *     A mask is BOOL, true where a key takes part, or F32, added to the scores. In torch.nn's layers true
 *     means left out, here as there. examples/gpt2.c and examples/bert_qa.c are whole models with weights
 *     from Hugging Face.
 *
 * STATES  A state carries a value from one run to the next: a cache of keys and values, a recurrent layer's h
 *     and c, a counter. It is read like any tensor and starts with its initial value. gpunn_assign gives it a
 *     new value, gpunn_assign_at a new part.
 *         // [n, rows, heads, e]
 *         gpunn_tensor *row    = gpunn_input(model, "row", GPUNN_F32, GPUNN_SHAPE(1, GPUNN_BATCH, 1, 16));
 *         // where these rows go
 *         gpunn_tensor *place  = gpunn_input(model, "place", GPUNN_I64, GPUNN_SHAPE(0));
 *         gpunn_tensor *filled = gpunn_input(model, "filled", GPUNN_I64, GPUNN_SHAPE(0)); // place + rows
 *         gpunn_init    none   = {GPUNN_INIT_ZEROS, 0, 0};
 *         // of a capacity of 64
 *         gpunn_tensor *keys   = gpunn_state(model, "keys", GPUNN_SHAPE(1, 64, 1, 16), none);
 *         gpunn_tensor *now    = gpunn_assign_at(keys, 1, place, row);
 *         gpunn_tensor *seen   = gpunn_scaled_dot_product_attention(row, now, now, .heads_last = true,
 *                                                                   .is_causal = true,
 *                                                                   .lengths = filled);
 *     An assignment returns the state as it is afterwards, so attention sees the new rows. The state itself,
 *     keys, still means the value at the start of the run. Ops that read this old value run before the
 *     assignment. If one cannot, because it also needs the new value, the run is GPUNN_ERR_STATE.
 *     An assignment happens in a run that reads its result, or that reads the state and all inputs that the
 *     assignment needs. If nothing reads its result, it happens at the end. So two ways to fill a state, say
 *     for a whole prompt and for one word, are two assignments, and each run makes its own. Training steps
 *     make only those with .in_training, after the backward pass; no gradient flows to the previous run.
 *     gpunn_write and gpunn_read access a state's value. gpunn_reset_states resets all states to their
 *     initial values. gpunn_set_saved includes a state in files. Specs describe states and assignments, but
 *     not the current values of states.
 *     Several texts can take turns with one model, each with states of its own:
 *         gpunn_init     zero = {GPUNN_INIT_ZEROS, 0, 0};
 *         gpunn_tensor  *visits = gpunn_state(model, "visits", GPUNN_SHAPE(1), zero);
 *         gpunn_tensor  *counted = gpunn_assign(visits, gpunn_add_scalar(visits, 1));
 *         gpunn_session *other = gpunn_session_create(model);
 *         gpunn_use_session(model, other); // from here on the states are its
 *         gpunn_forward(&counted, 1);
 *         gpunn_use_session(model, NULL);  // and the model's own again
 *         gpunn_session_destroy(other);
 *     A text need not be read back while it is generated. The token that gpunn_sample draws is assigned to a
 *     state from which the next run starts, and to its place in another state, which is read at the end.
 *         gpunn_init    empty  = {GPUNN_INIT_ZEROS, 0, 0};
 *         // states are F32, exact up to 2^24
 *         gpunn_tensor *token  = gpunn_state(model, "token", GPUNN_SHAPE(1), empty);
 *         gpunn_tensor *count  = gpunn_state(model, "count", GPUNN_SHAPE(1), empty);
 *         gpunn_tensor *text   = gpunn_state(model, "text", GPUNN_SHAPE(100), empty);
 *         // from 0 to below 1, all at once
 *         gpunn_tensor *draws  = gpunn_input(model, "draws", GPUNN_F32, GPUNN_SHAPE(100));
 *         gpunn_tensor *scores = gpunn_embedding(gpunn_cast(token, GPUNN_I64), "bigrams",
 *                                                .num_embeddings = 50,
 *                                                .embedding_dim = 50);
 *         gpunn_tensor *at     = gpunn_cast(count, GPUNN_I64);
 *         gpunn_tensor *drawn  = gpunn_sample(scores, gpunn_index_select(draws, 0, at), .temperature = 0.8f,
 *                                             .top_k = 40);
 *         gpunn_tensor *said   = gpunn_assign_at(text, 0, gpunn_reshape(at, GPUNN_SHAPE(0)),
 *                                                gpunn_cast(drawn, GPUNN_F32));
 *         gpunn_assign(token, gpunn_cast(drawn, GPUNN_F32)); // both take place whenever `said` is computed
 *         gpunn_assign(count, gpunn_add_scalar(count, 1));
 *     Recurrent layers and gpunn_conv1d with .stateful continue by themselves. A sequence can thus arrive in
 *     pieces; gpunn_reset_states begins another, and .reset of recurrent layers begins some of them, at any
 *     of their steps. If the number of sequences varies, .capacity is the largest.
 *         // [length, n, features]
 *         gpunn_tensor *piece  = gpunn_input(model, "piece", GPUNN_F32, GPUNN_SHAPE(5, 1, 16));
 *         gpunn_tensor *stream = gpunn_gru(piece, "stream", .hidden_size = 24, .stateful = true);
 *     examples/gpt2.c generates text with a cache, examples/char_lstm.c with such layers.
 *
 * OPS OF YOUR OWN  If a formula (LAYERS) is enough, use that. An op in C, and in CUDA if it must run on a
 *     GPU, is a gpunn_custom_op: two functions that read and write plain arrays. It takes part in shapes,
 *     gradients, plans and files like any other op. Register it (gpunn_register_custom) so that specs find
 *     it. examples/custom_op.c is a complete example, with the CUDA side.
 *         // static int swish(const gpunn_custom_call *c): c->in[0].data to c->out->data, c->out->count
 *         // numbers; return 0
 *         gpunn_custom_op op = {.name = "swish", .inputs = 1, .forward = swish};
 *         gpunn_tensor   *own = gpunn_custom(&op, &h, .numbers = {1.702f});
 *         gpunn_forward(&own, 1);
 *
 * LOSSES  Any scalar can be trained: a loss, a weighted sum of several, or a formula that ends in gpunn_mean.
 *     The names are those of torch.nn.functional, where some end in _loss and some do not. Two are shorter:
 *     gpunn_bce_loss is binary_cross_entropy, gpunn_bce_with_logits is binary_cross_entropy_with_logits.
 *         gpunn_tensor *sparse = gpunn_mean(gpunn_abs(h), GPUNN_ALL, false);
 *         gpunn_tensor *total  = gpunn_add(loss, gpunn_mul_scalar(sparse, 1e-3f));
 *         gpunn_train_step(o, total);
 *         printf("%g\n", gpunn_item(total));
 *     Classes are integers, as in PyTorch. cross_entropy takes logits and labels, not probabilities.
 *         gpunn_tensor *labels = gpunn_input(model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
 *         gpunn_tensor *logits = gpunn_linear(h, "head", .out_features = 10);
 *         gpunn_tensor *nll    = gpunn_cross_entropy(logits, labels, .label_smoothing = 0.1f);
 *         gpunn_tensor *share  = gpunn_accuracy(logits, labels);
 *
 * TRAINING  gpunn_train_step is zero_grad, forward, backward, clipping and update in one call; on a GPU it is
 *     one launch. If the loss or a gradient is not finite, nothing changes and it returns GPUNN_ERR_NUMERIC.
 *     Further behaviour of a step is set on the optimizer:
 *         gpunn_set_clip_norm(o, 1);
 *         // such a step is skipped instead, and counted: gpunn_loss_scale(o, &skipped)
 *         gpunn_set_skip_nan(o, true);
 *         gpunn_set_schedule(o, .type = GPUNN_SCHEDULE_LINEAR, .warmup_steps = 100, .total_steps = 1000);
 *         gpunn_set_ema(o, 0.999f); // averages of the weights, exchanged with these by gpunn_ema_swap
 *         for (int step = 0; step < 3; step++) {
 *             gpunn_train_step(o, loss);
 *             gpunn_schedule_step(o, 0);
 *         }
 *     To make one update from several batches that do not fit memory together, by the mean of their
 *     gradients:
 *         // the eighth call updates
 *         for (int part = 0; part < 8; part++) gpunn_train_step(o, loss, .accumulate = 8);
 *     The same in separate calls, to look at gradients or to change them; gradients add up over calls:
 *         float         norm = 0;
 *         static float  gradient[1][50];
 *         gpunn_zero_grad(model);
 *         for (int part = 0; part < 4; part++) {
 *             gpunn_write(x, samples, sizeof samples);
 *             gpunn_backward(loss);
 *         }
 *         gpunn_clip_grad_norm(model, 4, &norm);
 *         gpunn_read_grad(gpunn_find(model, "fc2.weight"), gradient, sizeof gradient);
 *         gpunn_optimizer_step(o);
 *     Several losses of one forward pass, to look at each one's gradients or to weigh them against each
 *     other:
 *         gpunn_tensor *energy = gpunn_mean(gpunn_square(h), GPUNN_ALL, false);
 *         static float  of_loss[50][20], of_energy[50][20];
 *         gpunn_zero_grad(model);
 *         gpunn_backward(loss, .then = {energy});  // both losses, and the gradients of the first
 *         gpunn_read_grad(gpunn_find(model, "fc1.weight"), of_loss, sizeof of_loss);
 *         gpunn_zero_grad(model);                  // or not, and they add up
 *         // those of the second, from what that forward pass has left
 *         gpunn_backward(energy, .retained = true);
 *         gpunn_read_grad(gpunn_find(model, "fc1.weight"), of_energy, sizeof of_energy);
 *     Fine-tuning: load the weights that match, freeze some, and give the new head its own learning rate.
 *         for (int i = 0; i < gpunn_parameter_count(model); i++)
 *             if (strncmp(gpunn_tensor_name(gpunn_parameter_at(model, i)), "fc1.", 4) == 0)
 *                 gpunn_set_trainable(gpunn_parameter_at(model, i), false);
 *         gpunn_set_lr_scale(gpunn_find(model, "fc2.weight"), 10);
 *         gpunn_set_decay(gpunn_find(model, "fc2.bias"), false);
 *     With low-rank adapters (LoRA) the model is frozen, and only small matrices beside its layers are
 *     trained. gpunn_lora_save and gpunn_lora_load keep them in the files of Hugging Face's PEFT;
 *     gpunn_lora_merge adds them to the weights.
 *         gpunn_optimizer_destroy(o); // adapters come before the optimizer
 *         gpunn_lora(model, "fc{1,2}", .rank = 4, .alpha = 8);
 *         o = gpunn_adamw(model, .lr = 1e-3f); // of the adapters alone
 *
 *     If parts of a model are trained against each other, as in a GAN, each has its own optimizer, selected
 *     by names or by a list:
 *         gpunn_model     *gan = gpunn_model_create(dev);
 *         gpunn_tensor    *noise = gpunn_input(gan, "noise", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 20));
 *         gpunn_tensor    *made = gpunn_linear(noise, "maker.fc", .out_features = 20);
 *         gpunn_tensor    *score = gpunn_linear(made, "judge.fc", .out_features = 1);
 *         gpunn_tensor    *losses[] = {gpunn_mean(gpunn_neg(score), GPUNN_ALL, false),
 *                                      gpunn_mean(score, GPUNN_ALL, false)};
 *         gpunn_optimizer *turns[] = {gpunn_adam(gan, .prefix = "maker."),
 *                                     gpunn_adam(gan, .prefix = "judge.")};
 *         for (int turn = 0; turn < 4; turn++) {
 *             gpunn_write(noise, samples, sizeof samples);
 *             gpunn_train_step(turns[turn % 2], losses[turn % 2]);
 *         }
 *         gpunn_optimizer_destroy(turns[0]);
 *         gpunn_optimizer_destroy(turns[1]);
 *         gpunn_model_destroy(gan);
 *
 * RANDOM NUMBERS  gpunn_rand and gpunn_randn are layers that draw new numbers on the device in every run,
 *     including evaluation:
 *         gpunn_tensor *mean_of_h = gpunn_linear(h, "mean", .out_features = 8);
 *         gpunn_tensor *spread = gpunn_linear(h, "spread", .out_features = 8);
 *         // of a VAE
 *         gpunn_tensor *code  = gpunn_add(mean_of_h, gpunn_mul(gpunn_exp(spread), gpunn_randn_like(spread)));
 *         gpunn_tensor *noise_of_x = gpunn_mul_scalar(gpunn_rand(model, GPUNN_SHAPE(GPUNN_BATCH, 20)), 0.1f);
 *     The same seed gives the same numbers at the same step on every device, except for the last bits of
 *     normal numbers. An evaluation between two steps does not change what the next step draws.
 *
 * EVALUATION  gpunn_forward computes only what the outputs need, without dropout, and batch_norm uses its
 *     running statistics. Only the inputs that the outputs need must have been written; the batch size may
 *     differ.
 *         gpunn_tensor *probability = gpunn_sigmoid(y), *outputs[] = {probability, h};
 *         float         p[3], hidden[3][50];
 *         gpunn_write(x, samples, 3 * sizeof samples[0]);
 *         gpunn_forward(outputs, 2);
 *         gpunn_read(probability, p, sizeof p);
 *         gpunn_read(h, hidden, sizeof hidden);
 *     gpunn_forward_training is the same with dropout, anew in each call, and with running statistics that
 *     are updated. After the first call nothing is allocated, which suits a game or a control loop.
 *     gpunn_forward_prepare does the same without computing, before a real-time thread starts.
 *     gpunn_keep makes an intermediate value readable after every run, gpunn_retain_grad its gradient. This
 *     computes how an output depends on the inputs, for a saliency map or an adversarial example, without
 *     affecting training:
 *         static float gradients[8][20];
 *         gpunn_retain_grad(x);
 *         gpunn_backward(gpunn_sum(y, GPUNN_ALL, false), .mode = GPUNN_MODE_EVALUATION, .inputs_only = true);
 *         gpunn_read_grad(x, gradients, sizeof gradients);
 *
 * DERIVATIVES  gpunn_grad returns a gradient as a tensor like any other. It can be part of a loss, be trained
 *     through, and be differentiated again. This network solves u'' + u = 0 with u(0) = 0 and u'(0) = 1 from
 *     its residual alone (examples/pinn.c solves Burgers' equation):
 *         gpunn_model     *ode = gpunn_model_create(dev);
 *         gpunn_tensor    *time = gpunn_input(ode, "time", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
 *         gpunn_tensor    *bent = gpunn_tanh(gpunn_linear(time, "0", .out_features = 16));
 *         gpunn_tensor    *free_part = gpunn_linear(bent, "1", .out_features = 1);
 *         // u(0) = 0, u'(0) = 1
 *         gpunn_tensor    *u = gpunn_add(time, gpunn_mul(gpunn_square(time), free_part));
 *         gpunn_tensor    *u_t = gpunn_grad(u, time), *u_tt = gpunn_grad(u_t, time);
 *         gpunn_tensor    *residual = gpunn_mean(gpunn_square(gpunn_add(u_tt, u)), GPUNN_ALL, false);
 *         gpunn_optimizer *solver = gpunn_adam(ode);
 *         gpunn_write(time, targets, sizeof targets);
 *         gpunn_train_step(solver, residual);
 *         gpunn_optimizer_destroy(solver);
 *         gpunn_model_destroy(ode);
 *     The gradient is of the sum over the batch. If sample i of y depends only on sample i of x, as here,
 *     gpunn_grad(y, x) is each sample's own derivative. It works backward, from one number per sample to all
 *     inputs. gpunn_jvp works forward, from one direction to all outputs. They nest in any order. gpunn_hvp
 *     is forward over backward. gpunn_laplacian costs as many products as y itself, the same again for y's
 *     gradient, and again for each coordinate. For a network of place and time:
 *         gpunn_model  *heat = gpunn_model_create(dev);
 *         gpunn_tensor *xyt = gpunn_input(heat, "xyt", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3)), *du;
 *         gpunn_tensor *warm = gpunn_tanh(gpunn_linear(xyt, "0", .out_features = 16));
 *         gpunn_tensor *temperature = gpunn_linear(warm, "1", .out_features = 1);
 *         gpunn_tensor *u_xx_yy = gpunn_laplacian(temperature, xyt, .coordinates = 2, .gradient = &du);
 *         gpunn_tensor *left = gpunn_sub(gpunn_slice(du, 1, 2, 3, 1), u_xx_yy); // u_t - u_xx - u_yy
 *         gpunn_model_destroy(heat);
 *
 * DATA  A loader takes samples in memory, or a function that makes them, and writes shuffled batches into the
 *     inputs. With .workers other threads make the batches while the device computes. U8 images are converted
 *     to F32 on the way. Their field can augment them anew in each epoch: .crop_padding, .degrees,
 *     .horizontal_flip, .vertical_flip, .brightness, .contrast, .saturation and .hue. .mixup_alpha of the
 *     loader mixes samples and their labels.
 *         gpunn_loader *loader = gpunn_loader_create(model, .fields = {{.input = x, .samples = samples},
 *                                                               {.input = t, .samples = targets}},
 *                                                    .count = 8, .batch_size = 4, .shuffle = true);
 *         for (int epoch = 0; epoch < 2; epoch++)
 *             while (gpunn_next(loader)) gpunn_train_step(o, loss);
 *         gpunn_loader_destroy(loader);
 *     Samples may be memory of the device, such as the fields of a solver on a GPU. Batches are gathered
 *     there, in the same order, and the program may change the samples between them. Only the numbers of a
 *     batch's samples are copied to the GPU:
 *         gpunn_loader *near = gpunn_loader_create(model, .on_device = true,
 *                                                  .fields = {{.input = x, .samples = samples},
 *                                                             {.input = t, .samples = targets}},
 *                                                  .count = 8, .batch_size = 4, .shuffle = true);
 *         gpunn_loader_destroy(near);
 *     Readers for IDX (MNIST), CIFAR, .npy and safetensors fill a gpunn_array: see gpunn_read_idx and the
 *     functions after it.
 *
 * FIT  gpunn_fit is the usual training loop: epochs, validation, the best weights, curves, checkpoints, early
 *     stopping.
 *         gpunn_loader *train = gpunn_loader_create(model, .fields = {{.input = x, .samples = samples},
 *                                                              {.input = t, .samples = targets}},
 *                                                   .count = 8, .batch_size = 4, .shuffle = true);
 *         gpunn_fit(o, .loss = loss, .metric = gpunn_binary_accuracy(gpunn_sigmoid(y), t), .train = train,
 *                   .epochs = 2, .patience = 5, .checkpoint = "fit.ckpt",
 *                   .best_weights = "best.safetensors", .history_svg = "curves.svg");
 *         gpunn_loader_destroy(train);
 *     .validation_share of a loader holds out samples by chance. .restore_best ends with the best weights,
 *     and patience counts after .min_epochs.
 *     .metrics takes further scalars, such as gpunn_top_k_accuracy, for .on_progress. .on_epoch_begin and
 *     .on_batch_begin are called before the work. .accumulate makes one update from several batches.
 *     gpunn_evaluate_classes computes what is not a mean over batches: a confusion matrix, F1 and the area
 *     under the ROC curve. For class weights use .weight of cross_entropy.
 *
 * RANKS  Several processes, the ranks, train one model together, each with its part of every batch. With MPI,
 *     compile the file of GPUNN_IMPLEMENTATION with mpicc -DGPUNN_MPI and start it by mpirun -n 4 ./app or
 *     srun. Without MPI, use torchrun, mpirun or srun, and set GPUNN_STORE to an empty folder that all ranks
 *     see, or to rank 0's tcp://host:port. torch's MASTER_ADDR and MASTER_PORT serve as well. Alone, the same
 *     program is a group of one.
 *         gpunn_group  *group = gpunn_group_open(dev);
 *         gpunn_loader *part = gpunn_loader_create(model, .fields = {{.input = x, .samples = samples},
 *                                                                    {.input = t, .samples = targets}},
 *                                                  .count = 8, .batch_size = 4, .shuffle = true,
 *                                                  .group = group);
 *         gpunn_distribute(o, group);
 *         // rank 0 reports
 *         gpunn_fit(o, .loss = loss, .train = part, .epochs = 2, .on_progress = gpunn_progress_bar);
 *         gpunn_loader_destroy(part);
 *         gpunn_distribute(o, NULL);
 *         gpunn_group_close(group);
 *     Results are those of one device with the batches of all ranks combined, within rounding. batch_size is
 *     per rank; gradients and losses are means over ranks, and clipping uses these means. Two things differ:
 *     dropout, and batch_norm without .sync = true, which uses the statistics of each rank's own part. The
 *     same seed on every rank reproduces the run to the bit.
 *     Every rank must make the calls that are common to all ranks (gpunn_train_step, gpunn_fit, checkpoints;
 *     >>group). Guard what only one rank does, such as printing, by gpunn_group_rank(group) == 0.
 *     gpunn_backward, gpunn_clip_grad_norm and gpunn_read_grad act on this rank alone until
 *     gpunn_optimizer_step. With .sync, however, all training runs are common.
 *     A group fails as a whole. If a rank is missing for .timeout seconds, the others' calls return
 *     GPUNN_ERR_DEVICE and name it. Then end the program and restart it with gpunn_checkpoint_load; the
 *     number of ranks may change. gpunn_group_open(dev, .shard = true) leaves each rank only its share of the
 *     optimizers' states and averages (ZeRO-1), with the same results within rounding. .bf16_gradients = true
 *     halves the bytes of exchanged gradients.
 *     GPUs: gpunn_device_open(.index = GPUNN_LOCAL_RANK) gives each rank of a machine its own GPU; two ranks
 *     on one GPU are an error. NCCL carries the exchange between GPUs as part of the step's graph, while
 *     backward computes the next gradients. The library opens libnccl.so.2 as it does cuDNN
 *     (GPUNN_NCCL_PATH), and sets NCCL_GRAPH_REGISTER=0 if it is not set. Without NCCL the exchange goes
 *     through host memory, which is reported to log_fn.
 *     CPUs: ranks that may use the same processors, depending on how mpirun and srun bind them, share these.
 *     From gpunn_group_open on a CPU device has processors / ranks threads, at least 1, unless .threads or
 *     OMP_NUM_THREADS sets the number. torchrun sets OMP_NUM_THREADS to 1 unless you set it, so set it there.
 *     If some ranks have CPUs and some GPUs, or CPUs of different instruction sets, which round differently,
 *     each update ends with a broadcast of rank 0's parameters.
 *
 * FILES  gpunn_save writes all parameters and buffers as safetensors, as torch's state_dict would have them.
 *     gpunn_load loads all or nothing; .partial loads what matches and reports the rest. A checkpoint holds
 *     everything needed to resume, to the bit.
 *         gpunn_save(model, "w.safetensors");
 *         gpunn_load(model, "w.safetensors", .partial = true);
 *         gpunn_checkpoint_save(o, NULL, "run.ckpt");
 *         gpunn_checkpoint_load(o, NULL, "run.ckpt");
 *     In Python: safetensors.torch.save_file(net.state_dict(), "w.safetensors"), and load_file back. Load
 *     weights split over several files by their index: gpunn_load(model, "model.safetensors.index.json").
 *     Rename tensors while loading if their names differ:
 *         gpunn_rename map[] = {{"module.*", "*"}, {"*.gamma", "*.weight"}, {NULL, NULL}};
 *         gpunn_load(model, "w.safetensors", .map = map);
 *     A .gguf file of llama.cpp is loaded in the same way. Blocks of quantised numbers become floats, or stay
 *     as they are with .keep_blocks = true, in the mapped file or copied to a GPU, where none is trained.
 *     gpunn_read_header shows the metadata and the tensors of either file as JSON.
 *     gpunn_save_memory, gpunn_load_memory and gpunn_spec_load_memory work on bytes in memory. With a
 *     gpunn_io your own functions open and read the file, from a pak file for example: gpunn_load(model,
 *     "net/weights", .io = &pak).
 *         gpunn_array bytes;
 *         gpunn_save_memory(model, &bytes);
 *         gpunn_load_memory(model, bytes.data, bytes.bytes);
 *         gpunn_array_free(dev, &bytes);
 *
 * MODELS AS JSON  A spec is the model without its weights. It serves the generator, other programs, and
 *     models that come from PyTorch (python3 -m generator.export_torch). generator/model.schema.json
 *     describes it.
 *         gpunn_model_save(model, "net.gpunn", .loss = loss, .optimizer = o); // one file, with the weights
 *         gpunn_model  *whole = gpunn_model_load(dev, "net.gpunn");
 *         gpunn_model_destroy(whole);
 *         gpunn_spec_save(model, "net.json", .loss = loss, .optimizer = o); // without them
 *         gpunn_model  *again = gpunn_spec_load(dev, "net.json");
 *         gpunn_tensor *input = gpunn_find(again, "x"), *first = gpunn_spec_output(again, 0);
 *         gpunn_model_destroy(again);
 *     In shapes, "N" or "4N" stands for the batch size. Other sizes that vary are names in "sizes": {"T":
 *     {"max": 512}} and occur in formulas, "2 * T - 1".
 *
 * FUSED KERNELS  python3 -m generator net.json -o net writes net_kernels.h and net_kernels.cu. They compute
 *     the ops between this model's products and convolutions as a few kernels, forward and backward. Write
 *     #define NET_KERNELS_IMPLEMENTATION, include the header, and call gpunn_use_kernels(model, &net_kernels)
 *     after building the model. If the model has changed, the kernels are not used, and log_fn receives the
 *     command that regenerates them. They serve all sizes of a model whose sizes vary; --report lists what
 *     such sizes prevent from being fused.
 *     Evaluation of a small network is one kernel: linear layers of at most 256 features with the ops between
 *     them, sample by sample. If it is not, --report says why. On a GPU that is one launch, used for batches
 *     for which it should be faster than step by step. All values of 16 to 64 samples are then in a block's
 *     shared memory; models of BF16, F16 and TF32 use tensor cores for the products (mma.sync). --report
 *     shows the expected time. A GPU kernel serves only models of its spec's precision.
 *     On a GPU (not on CPUs), evaluation of an F32 image network is also one launch if a block can hold all
 *     values of a sample, as for a LeNet: convolutions, pools and batch norms with the ops between them, few
 *     samples at a time. A training step there is two launches. The first goes from the batch to the loss and
 *     all gradients, whose sums have a fixed order; the second is the optimizer's update. It covers linear
 *     layers of at most 256 features, norms, softmax, elementwise ops, dropout, copies, embeddings and
 *     encodings. The loss must be a sum or mean of such values, or a classification loss. Sums of many
 *     weights take a third launch, gradients of the tables of embeddings and hash grids take three. --report
 *     says where step by step should be faster.
 *
 * PRECISION  The precision belongs to the model: gpunn_model_create(dev, .precision = GPUNN_PRECISION_BF16).
 *     Parameters, gradients, statistics, sums and losses stay F32, and so do all values that the program
 *     reads and writes.
 *     On the CPU all values stay F32. If the processor has AVX-512 BF16, linear layers and gpunn_matmul of a
 *     BF16 model round their operands and take half the time. Exceptions are products of few rows with 32-bit
 *     weights, which gain nothing, and those inside a generated kernel, which are F32.
 *     A model for evaluation, .inference = true, stores the weights of its products and embeddings in 16 bits
 *     only, rounded when written or loaded; on the CPU those of linear layers and embeddings. On a GPU its
 *     values between layers are 16-bit too: adding an F32 input or an embedding does not make the sum F32, as
 *     after torch's net.half().
 *     Such a model can store the weights of linear layers and embeddings as blocks of 4 to 8 bits, in GGUF's
 *     formats or NF4: .weights of gpunn_model_create, or gpunn_set_storage for one. gpunn_bind_as uses blocks
 *     where they are. On a CPU products of few rows then round the rows to 8 bits. Weights that
 *     gpunn_lora freezes can be stored so, too, without this rounding; adapters train above them.
 *     A trained model can become one that computes with 8-bit integers. Samples show the ranges of
 *     its values. Each layer's error can be reported, and layers that lose too much can stay F32.
 *         gpunn_calibrate(model, .outputs = {y}); // on the batch that x holds; more batches add to it
 *         gpunn_model *small = gpunn_quantize(model);
 *         gpunn_model_save(small, "net_int8.safetensors");
 *         gpunn_model_destroy(small);
 *
 * MEMORY  Parameters, gradients and optimizer state are flat buffers. All other values are in one arena, with
 *     offsets planned by lifetime, so a value is overwritten as soon as nothing needs it. gpunn_read works
 *     for the outputs of the last gpunn_forward, the loss of the last training step, and values named by
 *     gpunn_keep. gpunn_model_summary computes the exact bytes before anything is allocated. After the first
 *     run of each (outputs, mode, sizes) nothing is allocated. The last 32 such plans are kept, or as many as
 *     gpunn_set_plan_limit sets; the least recently used one is freed first.
 *         size_t bytes = 0;
 *         gpunn_model_summary(model, .batch_size = 256, .loss = loss, .bytes = &bytes);
 *         printf("a training step of 256 samples holds %zu bytes\n", bytes);
 *     A model that is only evaluated needs less: gpunn_model_create(dev, .inference = true). In 16 bits its
 *     weights take half (see PRECISION), and a CPU reads them faster, for instance for the tokens of a
 *     language model one at a time. Training needs less with checkpoint segments: it recomputes the inside of
 *     a block when the backward pass reaches it, for up to a third more time:
 *         gpunn_tensor *deep = h;
 *         for (int i = 0; i < 4; i++) {
 *             char          name[16];
 *             gpunn_tensor *first = deep;
 *             snprintf(name, sizeof name, "deep%d", i);
 *             deep = gpunn_add(deep, gpunn_silu(gpunn_linear(gpunn_tanh(deep), name, .out_features = 50)));
 *             gpunn_recompute(first, deep);
 *         }
 *     Or give the available bytes, and the library chooses the blocks:
 *         gpunn_recompute_within(loss, 256, (size_t)1 << 30);
 *     .realloc_fn allocates host memory, .memory_limit bounds the device's, and gpunn_empty_cache frees what
 *     runs hold.
 *
 * ERRORS  The first failure on a device is kept, and gpunn_error(dev) and gpunn_last_status(dev) return it
 *     until gpunn_clear_error(dev). Builders return NULL on failure and for NULL operands, so a chain is
 *     checked once at its end. After a failed call the object is as it was before. If a training run fails
 *     because of its values, such as a label out of range or a loss that is not finite, dropout draws new
 *     numbers in the next one. Failures without a device (of gpunn_device_open itself) are kept per thread:
 *     gpunn_error(NULL).
 *         gpunn_tensor *wrong = gpunn_relu(gpunn_add(gpunn_linear(x, "fc3", .out_features = 7), h));
 *         // add: shapes [batch, 7] and [batch, 50] do not broadcast ...
 *         if (wrong == NULL) puts(gpunn_error(dev));
 *         gpunn_clear_error(dev);
 *     Conditions that do not stop a run but matter (a GPU that is not used, kernels that do not match) go to
 *     .log_fn.
 *
 * THREADS  A device, with its models, optimizers and loaders, belongs to one thread at a time. Different
 *     devices are independent. A loader's worker threads touch only its buffers.
 *     A device's CPU work is shared by .threads threads: the calling one and a thread pool. The pool starts
 *     with the first work for it and ends with the device; results do not depend on the number of threads.
 *     Workers wait some tens of microseconds for more work, then sleep. gpunn_parallel makes them available
 *     to a custom op. On Linux they have the CPU affinity of the thread that starts them (sched_setaffinity).
 *     gpunn_empty_cache ends them until there is work again. After a fork the child may continue with a CPU
 *     device, which starts new threads, as loaders do. A CUDA context does not survive a fork: there every
 *     call except those that close and destroy returns GPUNN_ERR_DEVICE.
 *     With .parallel_fn a pool of the program's does their work, and the library starts no threads for it.
 *     Its whole contract:
 *         // #pragma omp parallel for num_threads(count)
 *         // for (int i = 0; i < count; i++) run(arg);
 *     Each call of run does a share of the work that is left, or nothing. So the pool may be busy, have fewer
 *     threads, or be used by several devices at once. Calls may come late or one after another, which costs
 *     time but never blocks. None may be omitted, nor come after parallel_fn has returned. Results equal
 *     those of the library's threads, to the bit. Loaders' workers are always threads of the library. No
 *     signal is caught. If a file size limit or a closed pipe is possible, ignore SIGXFSZ and SIGPIPE; saving
 *     then fails with GPUNN_ERR_IO instead of ending the program.
 *
 * GPU  Add gpunn_cuda.cu to the compile line; gpunn_device_open then uses a GPU, without any change to the
 *     program. If there is none, log_fn receives the reason, and gpunn_device_report lists all that was
 *     found. From its second run on, a training step or a gpunn_forward is one launch of a CUDA graph. Calls
 *     return before the work is done; reading a value waits, and so does gpunn_synchronize. A loss or
 *     gradient that is not finite changes nothing, but may be reported only by a later call,
 *     gpunn_synchronize at the latest. gpunn_write copies at once, so the next batch is transferred while a
 *     step runs. Precision is the model's: gpunn_model_create(dev, .precision = GPUNN_PRECISION_BF16).
 *     gpunn_model_to moves a model with its optimizers.
 *     A device fault is final: every later call on the device returns the same status; close it. For a bug
 *     report set GPUNN_PLAIN=1 in the environment. The message then names op and layer; each step is waited
 *     for, which is slow.
 *     gpunn.h references gpunn_cuda_backend weakly, so a linker does not pull it from a static library
 *     (libgpunn.a): see GPUNN_CUDA. If this is forgotten and an NVIDIA driver is present, log_fn receives a
 *     warning, so set it. Without log_fn you can still see from gpunn_device_name which device computes.
 *
 * IN A CUDA PROGRAM  gpunn_device_open(.stream = s) orders all work in the program's own stream. The library
 *     sees what was launched before, and what is launched next sees the results. Only these calls wait:
 *     gpunn_read, gpunn_item and gpunn_synchronize, which bring something to the host, the first runs of each
 *     kind, and closing. Each call preserves the current CUDA device and a pending CUDA error. CUDA keeps
 *     only one error, so a pending one is lost if a CUDA call of the library fails. It is also lost if
 *     functions of a gpunn_custom_op or generated kernels are launched, which query it. .cuda_malloc_fn and
 *     .cuda_free_fn allocate the GPU's memory.
 *     gpunn_bind uses user-owned memory for an input, a parameter or a value, gpunn_bind_grad for a gradient.
 *     Nothing is copied, and buffers may alternate. A GPU that shares the host's memory (Jetson;
 *     gpunn_device_name says "shared") accepts pinned host memory. A GPU that follows the host's page tables
 *     (Grace) accepts any. After gpunn_synchronize the host sees the results. On the CPU, bind arrays of the
 *     program:
 *         static float field[4][20], derivative[4][20];
 *         gpunn_bind(x, field, sizeof field); // four samples; a gpunn_write would have told the batch too
 *         gpunn_bind_grad(x, derivative, sizeof derivative);
 *     Training data that lies on the device, as the fields of a solver, is read there by a loader with
 *     .on_device (DATA). Or bind it to an input and let the graph draw rows, with replacement. No number then
 *     passes through the host:
 *         static float  cells[1000][3], fluxes[1000][1]; // memory of the device
 *         gpunn_tensor *all    = gpunn_input(model, "cells", GPUNN_F32, GPUNN_SHAPE(1000, 3));
 *         gpunn_tensor *wanted = gpunn_input(model, "fluxes", GPUNN_F32, GPUNN_SHAPE(1000, 1));
 *         gpunn_tensor *rows   = gpunn_cast(gpunn_mul_scalar(gpunn_rand(model, GPUNN_SHAPE(64)), 1000),
 *                                           GPUNN_I64);
 *         gpunn_tensor *flux   = gpunn_linear(gpunn_index_select(all, 0, rows), "flux", .out_features = 1);
 *         gpunn_tensor *missed = gpunn_mse_loss(flux, gpunn_index_select(wanted, 0, rows));
 *         gpunn_bind(all, cells, sizeof cells);
 *         gpunn_bind(wanted, fluxes, sizeof fluxes);
 *         gpunn_train_step(o, missed);
 *     gpunn_backward_from starts from gradients that the program provides, so a model can be a piece of a
 *     larger derivative:
 *         gpunn_tensor *rates[] = {y};
 *         static float  by_y[4][1]; // of what the program minimizes, by y
 *         const void   *by_rates[] = {by_y};
 *         gpunn_backward_from(rates, by_rates, 1);
 *     While the program captures its stream, gpunn_forward, gpunn_train_step and gpunn_backward add their
 *     launches to its graph, to be replayed on that stream. All three must have run before, outside the
 *     capture. A replay counts like the same step outside, and the two may be mixed: dropout masks, random
 *     numbers and Adam's corrections advance. The learning rate stays as captured. gpunn_step_count and
 *     schedules do not count replays; gpunn_checkpoint_save does. If the host writes parameters of a 16-bit
 *     model, a run outside must precede the next replay. Destroy graphs with steps of a group before closing
 *     the group; otherwise it waits for its .timeout.
 *
 * DETERMINISM  The same seed, data and build give the same bits on the same device; dropout drops the same
 *     elements on every device. On a GPU three things may vary in the last bits unless the device is
 *     .deterministic: recurrent layers, convolutions for which cuDNN has no other algorithm, and gradients of
 *     16-bit attention. The last are those whose scores, 2 bytes each, exceed .workspace_limit, and all of
 *     them on compute capability 10.x.
 *     On the CPU, 3 x 3 convolutions of 16 and more channels may use Winograd's algorithm. Its errors are
 *     about 4e-5 of the result's size, where a plain sum has 7e-6.
 *
 * SPEED  The most effective measures come first. Use -march=native (BUILDING). Use batches as large as memory
 *     allows: a small network is bound by the cost of each call, some microseconds on the CPU and more on a
 *     GPU. On a GPU, use .precision = GPUNN_PRECISION_BF16, channels in multiples of 8, loaders with
 *     .workers, and kernels from the generator. Call gpunn_item only every few steps, since it waits for the
 *     device. Set .benchmark = true if shapes stay the same for long. On the CPU, set .threads to the number
 *     of cores, not hyperthreads. The first run of each (outputs, mode, sizes) plans: run a dummy batch
 *     before time matters, and use .drop_last against the last, smaller batch of an epoch.
 *     tests/bench/RESULTS.md shows what to expect.
 *     To see where the time goes, profile the model. It reports each step beside what the device could do, as
 *     a table and as a trace for ui.perfetto.dev (more than 100 % comes out of caches):
 *         void (*print)(void *user, const char *text) = NULL; // a function that prints its text
 *         gpunn_profile(model, .loss = loss, .optimizer = o, .write = print, .peak_flops = 1e11,
 *                       .peak_bytes = 1e10);
 *
 * COMMON MISTAKES
 *     - "x is NULL": an earlier call failed, and its error has been cleared. Print gpunn_error(dev) at the
 *       end of the chain. Of a variable that was never set, gpunn_error(NULL) has the sentence.
 *     - softmax before cross_entropy, sigmoid before bce_with_logits: both take logits. gpunn_bce_loss takes
 *       probabilities.
 *     - the training loss falls, the validation loss does not: check that both are normalised in the same
 *       way.
 *     - every gradient is 0, or a weight never changes: gpunn_set_trainable, a dead relu, an input that is
 *       not scaled.
 *     - NaN after some steps: the learning rate is too high. gpunn_set_clip_norm(o, 1) shows this quickly,
 *       gpunn_check_nan(loss) names the layer.
 *     - it does not learn, without any NaN: gpunn_inspect reports mean, deviation and zeros of each layer and
 *       its gradients.
 *     - gpunn_read of an intermediate value fails: only outputs, the loss and values named by gpunn_keep
 *       exist after a run.
 *     - labels as F32: class losses take I64, I32 or U8 of shape [n], not one-hot vectors. An array of int is
 *       I32; read as I64, two labels make one of 2^32 or more.
 *     - empty cells of a table are NaN: gpunn_check_nan(loss) then names the input.
 *     - columns of different size: standardise them, and save mean and deviation with the model, as
 *       parameters that gpunn_set_trainable(p, false) keeps.
 *     - a field set to 0 seems to be ignored: 0 means the default; write GPUNN_ZERO.
 *
 * HOW IT WORKS  The trip of y = gpunn_linear(x, "fc", .out_features = 10). Names behind >> are sections of
 *     this file.
 *     Building. gpunn_linear is a macro for gpunn_linear_ (>>layers/basic). gpunn__apply_defaults applies the
 *     defaults of its row (>>graph/arguments). gpunn__layer_weight makes the parameters fc.weight and
 *     fc.bias. gpunn__node (>>graph/nodes) appends the result to the model, with the shape that gpunn__infer
 *     gives (>>graph/infer). Nothing is computed yet, and the device holds no memory.
 *     Planning. The first run of these outputs, in this mode and batch, makes a plan: a list of gpunn_step
 *     with pointers into one arena. Later runs find it (gpunn__plan_for, >>run/run). gpunn__plan_fill
 *     (>>plan/plan) makes it in these passes:
 *      1. gpunn__mark_operands: the tensors that the outputs are computed from.
 *      2. gpunn__mark_kept and gpunn__mark_assigns: tensors that the program keeps, and states that the run
 *        assigns.
 *      3. gpunn__resolve_sizes: attributes and shapes that depend on the run's sizes, which must all fit.
 *      4. gpunn__find_storage: weights kept in 16 bits or blocks alone: see gpunn_lora, .inference.
 *      5. gpunn__mark_storage: dtype and layout of each value.
 *      6. gpunn__mark_roots: reshapes and other aliases share their operand's memory.
 *      7. gpunn__mark_gradients: which tensors have gradients, and how many steps add to each
 *        (>>plan/backward).
 *      8. gpunn__mark_fused: nodes that a generated kernel computes together.
 *      9. gpunn__mark_order: the order of the nodes.
 *     10. gpunn__mark_chains: norm, residual and activation merged into the product or convolution before
 *        them.
 *     11. gpunn__mark_activated: gradients that the step of the activation has already multiplied.
 *     12. gpunn__mark_parts: products of one operand, as of q, k and v, joined to one.
 *     13. gpunn__forward_steps: a step for each chain.
 *     14. gpunn__backward_steps: steps in reverse order, for each loss. A gradient's first contribution
 *        overwrites, others add.
 *     15. gpunn__join_strips: convolutions of an evaluation that are computed together (>>cpu/strips).
 *     16. gpunn__overlay_steps and gpunn__prepare_steps: results that may overwrite an operand, and the
 *        workspace of each step.
 *     17. gpunn__assign_offsets: a place in the arena for each value, by size, in the lowest gap while it
 *        lives.
 *     Running. gpunn__plan_bind writes addresses into the steps. The CPU runs each step by its op's function:
 *     gpunn__cpu_linear (>>cpu/gemm), called with GPUNN__FORWARD or GPUNN__BACKWARD. gpunn_cuda.cu runs
 *     gpunn__cuda_linear (>>cuda/gemm there), once to capture the whole run as a CUDA graph, which later runs
 *     replay.
 *     Learning. The backward step leaves the gradient of fc.weight beside all others, in one array.
 *     gpunn__optimizer_collect (>>train/ranks) adds an update for each range of parameters with common
 *     settings to the run; gpunn__step_adam (>>cpu/optimizers) makes it.
 *
 * EXTENDING  gpunn_expr makes an op from a formula. gpunn_custom makes an op from C and CUDA functions
 *     (>>builders), without a change here: examples/custom_op.c.
 *     To change the library itself, edit its parts in templates/gpunn and run python3 -m
 *     generator.amalgamate. An elementwise op is one line in >>ops. An optimizer is a row in >>train, with
 *     the macro of its name. A loss or metric made of other ops is a formula: a row of GPUNN__FORMULAS in
 *     >>graph/arguments with its keys, and a field of its struct in >>builders. One with a struct of its own
 *     also has its prototype there.
 *     Any other op needs one function of its name in each backend, in sections of one name, a prototype, and
 *     a row of GPUNN_SIGNATURE_OPS in >>ops. The row's signature gives the shapes and dtypes. Its builder,
 *     and how specs are read and written, follow from it, in the generator too. New arguments are fields of
 *     gpunn_attributes and a list in >>graph/arguments. If gpunn_grad passes through the op, its gradient is
 *     in >>graph/differentiate. A function of its name in templates/kernels/inference_ops.h is its plain C.
 *     Other formats' names for it are in generator/exchange.
 *     An op whose shapes no signature describes has a row of GPUNN_OTHER_OPS, a rule in >>graph/infer, a
 *     builder in a section of layers/, a row in >>graph/arguments, and a builder in the generator's graph.py.
 *     Then run python3 -m generator.prototypes (the prototypes of elementwise ops and losses), python3 -m
 *     generator.schema and tests/generator/make_vectors.py, which update what follows from the rows.
 *
 * LIMITS  Rank 8, 64-bit sizes, 2^31-1 channels or features, 2^20 tensors in a model (30,000 from a spec).
 *     Arithmetic is F32 (with 16-bit storage on a GPU); numbers below 1.2e-38 (denormals) may count as zero.
 *     Little-endian machines only.
 */
