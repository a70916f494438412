! FTorch's training example on gpunn: a 5x5 linear layer that doubles its input learns to permute it instead.
!
!     python3 -m generator.fortran -o gpunn.f90
!     cc -O3 -march=native -c examples/embedding/gpunn.c -I. -o library.o
!     gfortran -O2 gpunn.f90 examples/embedding/training.f90 library.o -lm -lpthread -o training && ./training
!
! FTorch loads the layer from TorchScript and calls libtorch. Here the program builds it. The data, SGD with a rate of 0.05, the
! loss and the number of steps are FTorch's (Cambridge-ICCS/FTorch, examples/11_Training). Each step takes a new random vector.
!
! Expect: the loss at 1000, 2000, ... steps, which falls to 0, and the output 5 1 2 3 4.
! Time:   less than a second on two cores.
! Next:   gpunn_model_save, which writes the trained layer as one file for C, Fortran and Python.
program training
    use gpunn
    implicit none
    integer, parameter :: n = 5, steps = 10000
    real(c_float)      :: x(n), wanted(n), y(n), weight(n, n)
    type(c_ptr)        :: dev, model, input, target, output, loss, sgd
    integer            :: i

    dev = gpunn_device_open()
    if (.not. c_associated(dev)) error stop gpunn_error(c_null_ptr)
    model = gpunn_model_create(dev)
    input = gpunn_input(model, 'x', GPUNN_F32, gpunn_shape([n]))
    target = gpunn_input(model, 't', GPUNN_F32, gpunn_shape([n]))
    output = gpunn_linear(input, 'fc', gpunn_linear_args(out_features=n, no_bias=.true.))
    loss = gpunn_mse_loss(output, target)
    sgd = gpunn_sgd(model, gpunn_sgd_args(lr=0.05))

    weight = 0
    do i = 1, n
        weight(i, i) = 2
    end do
    call gpunn_check(gpunn_write(gpunn_find(model, 'fc.weight'), weight), dev)
    do i = 1, steps
        call random_number(x)
        wanted = cshift(x, -1)
        call gpunn_check(gpunn_write(input, x), dev)
        call gpunn_check(gpunn_write(target, wanted), dev)
        call gpunn_check(gpunn_train_step(sgd, loss), dev)
        if (mod(i, 1000) == 0) print '(a, i6, a, es9.2)', 'step', i, '  loss', gpunn_item(loss)
    end do

    call gpunn_check(gpunn_write(input, [(real(i, c_float), i = 1, n)]), dev)
    call gpunn_check(gpunn_forward([output]), dev)
    call gpunn_check(gpunn_read(output, y), dev)
    print '(a, 5f7.3)', 'output', y
    call gpunn_optimizer_destroy(sgd)
    call gpunn_model_destroy(model)
    call gpunn_device_close(dev)
end program
